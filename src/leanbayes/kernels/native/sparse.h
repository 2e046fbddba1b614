/* Local reparameterisation at the nonzeros of a weight.
 *
 * A blocked activation is [blocks][positions][channels][LANES]: LANES data of the batch side by side, a cache line, so that
 * one loop serves Linear (one position) and every convolution. Nonzeros of the weight are sorted by (output, tap, input) for
 * the forward pass and by (input, tap, output) for the backward pass. A pass takes a group of MEMBERS at a time, neighbours
 * in a row of the image (or, where there is one position, the same position in neighbouring blocks), and loads a nonzero once
 * for all of them. A tap that falls outside the image for some of the members is a run of nonzeros that the others meet: no
 * padding, no branch in the inner loop.
 */

#define PARTS (LANES / WIDTH) /* registers of a run of lanes */
#if WIDTH >= 16
#define MEMBERS 4
#define EACH_RANGE(F) F(0, 4) F(0, 3) F(1, 4) F(0, 2) F(2, 4) F(1, 3) F(0, 1) F(1, 2) F(2, 3) F(3, 4)
#elif WIDTH >= 8
#define MEMBERS 2
#define EACH_RANGE(F) F(0, 2) F(0, 1) F(1, 2)
#else
#define MEMBERS 1
#define EACH_RANGE(F) F(0, 1)
#endif
#define REGISTERS (MEMBERS * PARTS)
#define INLINE static inline __attribute__((always_inline))

/* Forward: m = sum mu x, v = sum sigma^2 x^2 over the nonzeros of an output, for the members q0 to q1. */

INLINE void NAME(gather)(const int q0, const int q1, const int variance, const float *x, int64_t step,
                         const int32_t *offset, const float *w, int32_t from, int32_t to, vf *m, vf *v) {
  for (int32_t k = from; k < to; k++) {
    const float *at = x + (int64_t)offset[k] * LANES;
    const vf mu = NAME(all)(w[2 * k]), s2 = NAME(all)(w[2 * k + 1]);
#pragma GCC unroll 4
    for (int q = q0; q < q1; q++)
#pragma GCC unroll 4
      for (int i = 0; i < PARTS; i++) {
        vf xi = NAME(load)(at + q * step + i * WIDTH);
        HOLD(xi);
        m[q * PARTS + i] += mu * xi;
        if (variance) v[q * PARTS + i] += s2 * (xi * xi);
      }
  }
}

/* Fetches the inputs that the next row of outputs meets for the first time, at the columns of a group: a part of them,
 * since each output of the group asks for as much. The order of nonzeros is none that a processor could foresee. */
INLINE void NAME(fetch)(const geometry *s, const float *x, int ih, int iw, int part, int parts) {
  const int row0 = ih + (s->kh > s->sh ? s->kh : s->sh), row1 = ih + s->sh + s->kh < s->h ? ih + s->sh + s->kh : s->h;
  const int column0 = iw < 0 ? 0 : iw, column1 = iw + MEMBERS * s->sw < s->w ? iw + MEMBERS * s->sw : s->w;
  const int64_t lines = (int64_t)(column1 - column0) * s->inputs, share = (lines + parts - 1) / parts;
  const int64_t end = (part + 1) * share < lines ? (part + 1) * share : lines;
  for (int row = row0 < 0 ? 0 : row0; row < row1; row++)
    for (int64_t i = part * share; i < end; i++)
      __builtin_prefetch(x + (((int64_t)row * s->w + column0) * s->inputs + i) * LANES, 0, 2);
}

INLINE void NAME(forward_task)(const int mode, const geometry *s, const plan *p, const float *w, const float *bias,
                               const float *x, const float *eps, float *y, float *z, uint64_t seed, int64_t task,
                               int64_t block, int members, int first, int last, int row0, int row1, run *runs,
                               span *reach) {
  const int taps = s->kh * s->kw, along = s->along_blocks;
  const int64_t line = (int64_t)s->inputs * LANES, out_line = (int64_t)s->outputs * LANES;
  const int64_t x_block = (int64_t)s->h * s->w * line, y_block = (int64_t)s->oh * s->ow * out_line;
  const int64_t x_step = along ? x_block : s->sw * line, y_step = along ? y_block : out_line;
  NAME(rng) g;
  if (mode == NOISE) g = NAME(seeded)(seed, (uint64_t)task);
  for (int oh = row0; oh < row1; oh++)
    for (int ow = 0; ow < s->ow; ow += along ? 1 : MEMBERS) {
      const int ih = oh * s->sh - s->ph, iw = ow * s->sw - s->pw;
      const int here = along ? members : s->ow - ow < MEMBERS ? s->ow - ow : MEMBERS;
      const span r = inside(ih, s->h, s->kh);
      for (int b = 0; b < s->kw; b++) { /* the members whose column b is inside the image */
        const int at = iw + b;
        if (along) reach[b] = (span){0, at >= 0 && at < s->w ? here : 0};
        else {
          const int low = at < 0 ? (-at + s->sw - 1) / s->sw : 0, high = at < s->w ? (s->w - 1 - at) / s->sw + 1 : 0;
          reach[b] = (span){low, high < here ? high : here};
        }
      }
      const int count = joined(runs, reach, s->kw, r, 0);
      const float *xp = x + block * x_block + ((int64_t)ih * s->w + iw) * line;
      const int64_t yp = block * y_block + ((int64_t)oh * s->ow + ow) * out_line;
      for (int o = first; o < last; o++) {
        if (!along) NAME(fetch)(s, x + block * x_block, ih, iw, o - first, last - first);
        const int32_t *rows = p->rows + (int64_t)o * taps;
        vf m[REGISTERS], v[REGISTERS];
#pragma GCC unroll 4
        for (int i = 0; i < REGISTERS; i++) {
          m[i] = NAME(all)(bias ? bias[o] : 0.0f);
          v[i] = NAME(all)(0.0f);
        }
        for (int j = 0; j < count; j++) {
          const int32_t k0 = rows[runs[j].from], k1 = rows[runs[j].to];
          switch (runs[j].q0 * 8 + runs[j].q1) {
#define RANGE(a, b) \
  case a * 8 + b: NAME(gather)(a, b, mode != MEAN, xp, x_step, p->offset, w, k0, k1, m, v); break;
            EACH_RANGE(RANGE)
#undef RANGE
          }
        }
        const int64_t yo = yp + (int64_t)o * LANES;
#pragma GCC unroll 4
        for (int i = 0; i < REGISTERS; i += 2) {
          vf e[2];
          if (mode == NOISE) NAME(normals)(&g, &e[0], &e[1]);
#pragma GCC unroll 2
          for (int j = i; j < i + 2; j++) {
            if (j / PARTS >= here) continue;
            const int64_t at = yo + j / PARTS * y_step + j % PARTS * WIDTH;
            if (mode == MEAN) { NAME(store)(y + at, m[j]); continue; }
            if (mode == GIVEN) e[j - i] = NAME(load)(eps + at);
            const vf inverse = NAME(inverse_root)(v[j]);
            NAME(store)(y + at, m[j] + v[j] * inverse * e[j - i]);
            /* d sqrt(v) / dv = 1 / (2 sqrt(v)): zero where there is no variance, so that the gradient is finite */
            NAME(store)(z + at, NAME(where)(v[j] >= 0x1p-126f, 0.5f * e[j - i] * inverse));
          }
        }
      }
    }
}

static int64_t NAME(forward)(call *c, const geometry *shape, const plan *p, const float *mu, const float *sigma,
                             const float *bias, const float *x, const float *eps, float *y, float *z, uint64_t seed,
                             int mode) {
  const geometry s = *shape;
  const int group = s.along_blocks ? MEMBERS : 1, step = 4; /* blocks and rows of a task */
  const int taps = s.kh * s.kw, threads = most_threads();
  const int64_t units = (s.blocks + (int64_t)group - 1) / group, row_groups = (s.oh + (int64_t)step - 1) / step;
  float *w = piece(c, 2 * p->count);
  int *band = piece(c, (int64_t)s.outputs + 2);
  /* not on the stack of a thread: a kernel of the size of an image has as many taps */
  const pieces of_taps = piece_each(c, 4 * (int64_t)taps + 2 * (int64_t)s.kw, threads);
  if (lacks(c)) return needed(c);
  pack(p, mu, sigma, w);
  const int bands = cut(p->rows, s.outputs, taps, s.along_blocks ? p->count / 8 + 256 : 8192, band);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t task = 0; task < units * bands * row_groups; task++) {
    const int64_t row_group = task % row_groups, b = task / row_groups % bands, block = task / row_groups / bands * group;
    const int row0 = (int)row_group * step, row1 = row0 + step < s.oh ? row0 + step : s.oh;
    const int members = s.blocks - block < group ? (int)(s.blocks - block) : group;
    run *runs = (run *)own(of_taps);
    span *reach = (span *)(runs + taps);
#define RUN(mode) \
  case mode: \
    NAME(forward_task)(mode, &s, p, w, bias, x, eps, y, z, seed, task, block, members, band[b], band[b + 1], row0, row1, \
                       runs, reach); \
    break;
    switch (mode) { RUN(MEAN) RUN(NOISE) RUN(GIVEN) }
#undef RUN
  }
  return done(c);
}
