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

INLINE void NAME(forward_task)(const int mode, const geometry *s, const plan *p, const float *w, const float *bias,
                               const float *x, const float *eps, float *y, float *z, uint64_t seed, int64_t task,
                               int64_t block, int members, int first, int last, int row0, int row1) {
  const int taps = s->kh * s->kw, along = s->along_blocks;
  const int64_t line = (int64_t)s->inputs * LANES, out_line = (int64_t)s->outputs * LANES;
  const int64_t x_block = (int64_t)s->h * s->w * line, y_block = (int64_t)s->oh * s->ow * out_line;
  const int64_t x_step = along ? x_block : s->sw * line, y_step = along ? y_block : out_line;
  NAME(rng) g;
  if (mode == NOISE) g = NAME(seeded)(seed, (uint64_t)task);
  run runs[taps];
  span reach[s->kw];
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

static void NAME(forward)(const geometry *shape, const plan *p, const float *w, const float *bias, const float *x,
                          const float *eps, float *y, float *z, uint64_t seed, int mode) {
  const geometry s = *shape;
  const int group = s.along_blocks ? MEMBERS : 1, step = 4; /* blocks and rows of a task */
  const int64_t units = (s.blocks + group - 1) / group, pieces = (s.oh + step - 1) / step;
  int bands, *band = cut(p->rows, s.outputs, s.kh * s.kw, s.along_blocks ? p->count / 8 + 256 : 8192, &bands);
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t task = 0; task < units * bands * pieces; task++) {
    const int64_t piece = task % pieces, b = task / pieces % bands, block = task / pieces / bands * group;
    const int row0 = (int)piece * step, row1 = row0 + step < s.oh ? row0 + step : s.oh;
    const int members = s.blocks - block < group ? (int)(s.blocks - block) : group;
#define RUN(mode) \
  case mode: \
    NAME(forward_task)(mode, &s, p, w, bias, x, eps, y, z, seed, task, block, members, band[b], band[b + 1], row0, row1); \
    break;
    switch (mode) { RUN(MEAN) RUN(NOISE) RUN(GIVEN) }
#undef RUN
  }
  free(band);
}

/* Backward: at every input and position, over its nonzeros: dx from both paths, dmu and ds2 at the nonzeros alone.
 *
 * Loads from the second cache are what it costs, so it goes by tiles: s->tile outputs by a band of inputs, whose sums stay in
 * the first cache while a strip of rows goes by, and so do the gradients near a group of positions, which are laid out tile
 * by tile. Their rows have zeros at both ends, as far as taps and groups reach: no member needs an exception. */

/* The gradients of y and of v = y's times slope, run by run of lanes, for the blocks of a unit; what came after y is undone on
 * the way. Lanes beyond the batch get zero. bias: sums by output of the gradient of y are added, unless NULL. */
static void NAME(pair)(const geometry *s, const upstream *u, int64_t first, int members, float *pairs, float *bias) {
  const int64_t O = s->outputs, T = s->tile, tiles = (O + T - 1) / T, each = u->slope ? 2 : 1;
  const padded p = s->pad;
  const float *line = u->line;
  if (p.left || p.width > p.left + (s->along_blocks ? members : s->ow))
    for (int64_t row = 0; row < tiles * s->oh; row++) {
      const int64_t run = T * each * LANES, used = p.left + (s->along_blocks ? members : s->ow);
      memset(pairs + row * p.width * run, 0, sizeof(float) * p.left * run);
      memset(pairs + (row * p.width + used) * run, 0, sizeof(float) * (p.width - used) * run);
    }
  for (int m = 0; m < members; m++) {
    const int64_t valid = s->batch - (first + m) * LANES;
    for (int64_t at = 0; at < (int64_t)s->oh * s->ow; at++) {
      const int64_t row = s->along_blocks ? 0 : at / s->ow, column = p.left + (s->along_blocks ? m : at % s->ow);
      const int64_t from = ((first + m) * s->oh * s->ow + at) * O * LANES;
      for (int64_t tile = 0; tile < tiles; tile++) {
        float *to = pairs + ((tile * s->oh + row) * p.width + column) * T * each * LANES;
        for (int64_t o = tile * T; o < (tile + 1) * T && o < O; o++, to += each * LANES)
#pragma GCC unroll 4
          for (int i = 0; i < LANES; i += WIDTH) {
            const int64_t here = from + o * LANES + i;
            vf g = NAME(load)(u->g + here);
            if (line) {
              const vf y = NAME(load)(u->y + here);
              if (u->out) g = NAME(unless)(NAME(load)(u->out + here) <= 0.0f, g);
              else if (u->rectified) g = NAME(unless)(y * line[4 * O + o] + line[5 * O + o] <= 0.0f, g);
              g = g * line[o] - line[O + o] - (y - line[3 * O + o]) * line[2 * O + o];
            } else if (u->out) g = NAME(unless)(NAME(load)(u->out + here) <= 0.0f, g);
            if (valid < LANES) g = NAME(lanes_of)(g, i, valid);
            if (bias) NAME(store)(bias + o * LANES + i, NAME(load)(bias + o * LANES + i) + g);
            NAME(store)(to + i, g);
            if (each == 2) NAME(store)(to + LANES + i, g * NAME(load)(u->slope + here));
          }
      }
    }
  }
}

/* One tile on the rows ih0 to ih1. g: its pairs. sums: a vector (two with a variance) a nonzero of the tile, from k0 on. */
INLINE void NAME(backward_tile)(const int variance, const int want_x, const int want_w, const geometry *s, const plan *p,
                                const float *w, const float *x, const float *g, float *dx, float *sums, int32_t k0,
                                int64_t block, int members, int tile, int first, int last, int ih0, int ih1) {
  const int along = s->along_blocks, each = variance ? 2 : 1;
  const int64_t line = (int64_t)s->inputs * LANES, x_block = (int64_t)s->h * s->w * line;
  const int64_t x_step = along ? x_block : s->sw * line, g_step = (int64_t)s->tile * each * LANES;
  float *base = sums - (int64_t)k0 * each * WIDTH;
  for (int ih = ih0; ih < ih1; ih++)
    for (int f = 0; f < s->sw; f++) { /* columns of one phase of the stride: the same taps reach them */
      const phase hp = s->rows_of[(ih + s->ph) % s->sh], wp = s->cols_of[f];
      const int oh = (ih + s->ph) / s->sh;
      /* output row oh - a for the a-th tap of the phase: 0 <= oh - a < s->oh */
      const span r = {oh - s->oh + 1 > 0 ? oh - s->oh + 1 : 0, oh + 1 < hp.count ? oh + 1 : hp.count};
      for (int iw = ((f - s->pw) % s->sw + s->sw) % s->sw; iw < s->w; iw += along ? s->sw : MEMBERS * s->sw) {
        const int left = (s->w - iw + s->sw - 1) / s->sw, ow = (iw + s->pw) / s->sw;
        const int here = along ? members : left < MEMBERS ? left : MEMBERS;
        span segment = {hp.start * s->sw + f * hp.count + r.from, hp.start * s->sw + f * hp.count + r.to};
        if (along) { /* one output: one tap at most */
          segment.from = hp.start * s->kw + hp.count * wp.start + oh * wp.count + ow;
          segment.to = segment.from + (r.from < r.to && ow < wp.count);
        }
        if (segment.to < segment.from) segment.to = segment.from;
        const float *gp = g + (along ? 0 : ((int64_t)oh * s->pad.width + s->pad.left + ow) * g_step);
        const int64_t xp = block * x_block + ((int64_t)ih * s->w + iw) * line;
        for (int c = first; c < last; c++) {
          const int32_t *rows = p->rows + ((int64_t)tile * s->inputs + c) * s->segments;
          const int32_t from = segment.from < segment.to ? rows[segment.from] : 0;
          const int32_t to = segment.from < segment.to ? rows[segment.to] : 0;
          if (from == to && !(want_x && tile == 0)) continue;
          const int64_t xo = xp + (int64_t)c * LANES;
          vf xi[REGISTERS], xx[REGISTERS], am[REGISTERS], av[REGISTERS];
#pragma GCC unroll 4
          for (int j = 0; j < REGISTERS; j++) {
            const int64_t at = xo + j / PARTS * x_step + j % PARTS * WIDTH;
            if (j / PARTS < here) xi[j] = NAME(load)(x + at);
            else xi[j] = NAME(all)(0.0f);
            xx[j] = xi[j] * xi[j];
            am[j] = av[j] = NAME(all)(0.0f);
          }
          for (int32_t k = from; k < to; k++) {
            const float *at = gp + (int64_t)p->offset[k] * (LANES * each);
            const vf mu = NAME(all)(w[2 * k]), s2 = NAME(all)(w[2 * k + 1]);
            float *sum = base + (int64_t)k * (each * WIDTH);
            vf dm = NAME(all)(0.0f), dv = dm;
            if (want_w) {
              dm = NAME(load)(sum);
              if (variance) dv = NAME(load)(sum + WIDTH);
            }
#pragma GCC unroll 4
            for (int q = 0; q < MEMBERS; q++)
#pragma GCC unroll 4
              for (int i = 0; i < PARTS; i++) {
                const int j = q * PARTS + i;
                vf gm = NAME(load)(at + q * g_step + i * WIDTH);
                HOLD(gm);
                if (want_x) am[j] += mu * gm;
                if (want_w) dm += gm * xi[j];
                if (variance) {
                  vf gv = NAME(load)(at + q * g_step + LANES + i * WIDTH);
                  HOLD(gv);
                  if (want_x) av[j] += s2 * gv;
                  if (want_w) dv += gv * xx[j];
                }
              }
            if (want_w) {
              NAME(store)(sum, dm);
              if (variance) NAME(store)(sum + WIDTH, dv);
            }
          }
          if (want_x)
#pragma GCC unroll 4
            for (int j = 0; j < REGISTERS; j++)
              if (j / PARTS < here) {
                float *at = dx + xo + j / PARTS * x_step + j % PARTS * WIDTH;
                const vf more = am[j] + (xi[j] + xi[j]) * av[j];
                if (tile) NAME(store)(at, NAME(load)(at) + more);
                else NAME(store)(at, more);
              }
        }
      }
    }
}

/* dx, dmu and dbias are NULL where not wanted. */
static void NAME(backward)(const geometry *shape, const plan *p, const float *w, const float *x, const upstream *u,
                           float *dx, float *dmu, float *ds2, float *dbias) {
  const geometry s = *shape;
  const int variance = u->slope != NULL, each = variance ? 2 : 1, want_x = dx != NULL, want_w = dmu != NULL;
  const int group = s.along_blocks ? MEMBERS : 1, tiles = (s.outputs + s.tile - 1) / s.tile;
  const int64_t units = (s.blocks + group - 1) / group, g_tile = (int64_t)s.oh * s.pad.width * s.tile * LANES * each;
  /* a band of inputs has SUMS nonzeros of a tile, about; a strip has rows whose x and dx stay in the second cache */
  const int64_t per_input = p->count / ((int64_t)tiles * s.inputs) + 1;
  const int band = SUMS / per_input < 1 ? 1 : SUMS / per_input < s.inputs ? (int)(SUMS / per_input) : s.inputs;
  const int64_t bands = (s.inputs + band - 1) / band, row = (int64_t)s.w * band * group * LANES * 8;
  const int strip = STRIP / row < 1 ? 1 : STRIP / row < s.h ? (int)(STRIP / row) : s.h;
  /* parts of the batch, whose sums are added in a fixed order whatever the number of threads; where they are few, threads
   * share one, each with some of the bands */
  const int64_t chunks = units < 8 ? units : 8, want = (8 + chunks - 1) / chunks, shares = want < bands ? want : bands;
  const int64_t numbers = each * p->count;
  float *partial = want_w ? scratch(2, chunks * numbers) : NULL;
  float *bias = dbias ? calloc((size_t)(chunks * s.outputs * LANES), sizeof(float)) : NULL;
  if (want_w) memset(partial, 0, sizeof(float) * chunks * numbers);
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t task = 0; task < chunks * shares; task++) {
    const int64_t chunk = task / shares, share = task % shares;
    for (int64_t unit = chunk * units / chunks; unit < (chunk + 1) * units / chunks; unit++) {
      const int64_t block = unit * group;
      const int members = s.blocks - block < group ? (int)(s.blocks - block) : group;
      float *pairs = scratch(0, tiles * g_tile);
      NAME(pair)(&s, u, block, members, pairs, share || !bias ? NULL : bias + chunk * s.outputs * LANES);
      if (!want_x && !want_w) continue;
      for (int ih = 0; ih < s.h; ih += strip)
        for (int64_t b = share * bands / shares; b < (share + 1) * bands / shares; b++)
          for (int tile = 0; tile < tiles; tile++) {
            const int first = (int)b * band, last = first + band < s.inputs ? first + band : s.inputs;
            const int32_t *rows = p->rows + (int64_t)tile * s.inputs * s.segments;
            const int32_t k0 = rows[(int64_t)first * s.segments], k1 = rows[(int64_t)last * s.segments];
            const int64_t vectors = (int64_t)(k1 - k0) * each, room = (vectors + WIDTH - 1) / WIDTH * WIDTH * WIDTH;
            float *sums = want_w ? scratch(1, room) : NULL;
            if (want_w) memset(sums, 0, sizeof(float) * room);
#define RUN(v, wx, ww) \
  NAME(backward_tile)(v, wx, ww, &s, p, w, x, pairs + tile * g_tile, dx, sums, k0, block, members, tile, first, last, ih, \
                      ih + strip < s.h ? ih + strip : s.h)
#define WANTS(v) \
  if (want_x && want_w) RUN(v, 1, 1); else if (want_x) RUN(v, 1, 0); else RUN(v, 0, 1);
            if (variance) { WANTS(1) } else { WANTS(0) }
#undef WANTS
#undef RUN
            float *to = partial + chunk * numbers + (int64_t)k0 * each;
            for (int64_t v = 0; want_w && v < vectors; v += WIDTH) {
              const vf found = NAME(sums_of)(sums + v * WIDTH);
              if (v + WIDTH <= vectors) NAME(store)(to + v, NAME(load)(to + v) + found);
              else for (int64_t i = v; i < vectors; i++) to[i] += found[i - v];
            }
          }
    }
  }
  if (want_w) {
#pragma omp parallel for schedule(static)
    for (int64_t k = 0; k < p->count; k++) {
      float a = 0, c = 0;
      for (int64_t chunk = 0; chunk < chunks; chunk++) {
        a += partial[chunk * numbers + each * k];
        if (variance) c += partial[chunk * numbers + 2 * k + 1];
      }
      dmu[p->slot[k]] = a;
      if (variance) ds2[p->slot[k]] = c;
    }
  }
  if (dbias)
    for (int64_t o = 0; o < s.outputs; o++) {
      dbias[o] = 0;
      for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int i = 0; i < LANES; i++) dbias[o] += bias[(chunk * s.outputs + o) * LANES + i];
    }
  free(bias);
}

#undef PARTS
#undef MEMBERS
#undef EACH_RANGE
#undef REGISTERS
#undef INLINE
