/* Local reparameterisation at the nonzeros of a weight.
 *
 * A blocked activation is [blocks][positions][channels][lanes]: `lanes` data of the batch side by side, so that the batch
 * is the vector, and one loop serves Linear (one position) and every convolution. Nonzeros of the weight are sorted by
 * (output, tap, input) for the forward pass and by (input, tap, output) for the backward pass, so that the taps that fall
 * inside the image are a few ranges of them: no padding, no branch in the inner loop.
 */

/* Forward: m = sum mu x, v = sum sigma^2 x^2 over the nonzeros of an output; NV registers of each stay in place. */

static inline __attribute__((always_inline)) void NAME(gather)(
    const int NV, const float *x, const int32_t *offset, const float *w, int32_t from, int32_t to, int shift, vf *m, vf *v) {
  for (int32_t k = from; k < to; k++) {
    const float *at = x + ((int64_t)offset[k] << shift);
    vf mu = NAME(all)(w[2 * k]), s2 = NAME(all)(w[2 * k + 1]);
#pragma GCC unroll 8
    for (int i = 0; i < NV; i++) {
      vf xi = NAME(load)(at + i * WIDTH);
      m[i] += mu * xi;
      v[i] += s2 * (xi * xi);
    }
  }
}

static inline __attribute__((always_inline)) void NAME(gather_mean)(
    const int NV, const float *x, const int32_t *offset, const float *w, int32_t from, int32_t to, int shift, vf *m) {
  for (int32_t k = from; k < to; k++) {
    const float *at = x + ((int64_t)offset[k] << shift);
    vf mu = NAME(all)(w[2 * k]);
#pragma GCC unroll 8
    for (int i = 0; i < NV; i++) m[i] += mu * NAME(load)(at + i * WIDTH);
  }
}

static inline __attribute__((always_inline)) void NAME(forward_task)(
    const int NV, const int mode, const geometry *s, const plan *p, const float *w, const float *bias, const float *x,
    const float *eps, float *y, float *z, uint64_t seed, int64_t task, int64_t block, int lane, int first, int last,
    int64_t p0, int64_t p1) {
  const int shift = s->shift, taps = s->kh * s->kw;
  const int64_t L = (int64_t)1 << shift;
  const float *xb = x + block * s->h * s->w * s->inputs * L + lane;
  const int64_t yb = block * s->oh * s->ow * s->outputs * L + lane;
  NAME(rng) g;
  if (mode == NOISE) g = NAME(seeded)(seed, (uint64_t)task);
  for (int64_t at = p0; at < p1; at++) {
    const int oh = (int)(at / s->ow), ow = (int)(at % s->ow);
    const int ih = oh * s->sh - s->ph, iw = ow * s->sw - s->pw;
    span r = inside(ih, s->h, s->kh), c = inside(iw, s->w, s->kw);
    const float *xp = xb + ((int64_t)ih * s->w + iw) * s->inputs * L;
    const int whole = c.from == 0 && c.to == s->kw;
    for (int o = first; o < last; o++) {
      const int32_t *rows = p->rows + (int64_t)o * taps;
      vf m[8], v[8];
      for (int i = 0; i < NV; i++) {
        m[i] = NAME(all)(bias ? bias[o] : 0.0f);
        v[i] = NAME(all)(0.0f);
      }
      if (whole && r.from < r.to) {
        if (mode == MEAN) NAME(gather_mean)(NV, xp, p->offset, w, rows[r.from * s->kw], rows[r.to * s->kw], shift, m);
        else NAME(gather)(NV, xp, p->offset, w, rows[r.from * s->kw], rows[r.to * s->kw], shift, m, v);
      } else if (c.from < c.to) {
        for (int a = r.from; a < r.to; a++) {
          int32_t k0 = rows[a * s->kw + c.from], k1 = rows[a * s->kw + c.to];
          if (mode == MEAN) NAME(gather_mean)(NV, xp, p->offset, w, k0, k1, shift, m);
          else NAME(gather)(NV, xp, p->offset, w, k0, k1, shift, m, v);
        }
      }
      const int64_t yo = yb + (at * s->outputs + o) * L;
      for (int i = 0; i < NV; i += 2) {
        vf e[2];
        if (mode == NOISE) NAME(normals)(&g, &e[0], &e[1]);
        for (int j = 0; j < 2; j++) {
          float *out = y + yo + (i + j) * WIDTH;
          if (mode == MEAN) { NAME(store)(out, m[i + j]); continue; }
          if (mode == MOMENTS) { NAME(store)(out, m[i + j]); NAME(store)(z + yo + (i + j) * WIDTH, v[i + j]); continue; }
          if (mode == GIVEN) e[j] = NAME(load)(eps + yo + (i + j) * WIDTH);
          vf sd = NAME(root)(v[i + j]);
          NAME(store)(out, m[i + j] + sd * e[j]);
          /* d(sd)/dv = 1 / (2 sd): zero where there is no variance, so that the gradient is finite */
          vi some = v[i + j] > 0.0f;
          vf slope = (0.5f * e[j]) / NAME(pick)(some, sd, NAME(all)(1.0f));
          NAME(store)(z + yo + (i + j) * WIDTH, (vf)((vi)slope & some));
        }
      }
    }
  }
}

static void NAME(forward)(const geometry *s, const plan *p, const float *w, const float *bias, const float *x,
                          const float *eps, float *y, float *z, uint64_t seed, int mode) {
  const int64_t positions = (int64_t)s->oh * s->ow, L = (int64_t)1 << s->shift;
  const int NV = L % (4 * WIDTH) == 0 ? 4 : 2, lanes = NV * WIDTH, parts = (int)(L / lanes);
  const int64_t step = positions < 4 * s->ow ? positions : 4 * s->ow, pieces = (positions + step - 1) / step;
  int bands, *band = cut(p->rows, s->outputs, s->kh * s->kw, positions == 1 ? p->count / 8 + 256 : 8192, &bands);
  const int64_t tasks = (int64_t)s->blocks * parts * bands * pieces;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t task = 0; task < tasks; task++) {
    int64_t rest = task, piece = rest % pieces;
    rest /= pieces;
    int64_t b = rest % bands;
    rest /= bands;
    int lane = (int)(rest % parts) * lanes;
    int64_t block = rest / parts, p0 = piece * step, p1 = p0 + step < positions ? p0 + step : positions;
#define RUN(nv, mode) \
  NAME(forward_task)(nv, mode, s, p, w, bias, x, eps, y, z, seed, task, block, lane, band[b], band[b + 1], p0, p1)
#define MODES(nv) \
  switch (mode) { \
    case MEAN: RUN(nv, MEAN); break; \
    case MOMENTS: RUN(nv, MOMENTS); break; \
    case NOISE: RUN(nv, NOISE); break; \
    default: RUN(nv, GIVEN); \
  }
    if (NV == 4) { MODES(4) } else { MODES(2) }
#undef MODES
#undef RUN
  }
  free(band);
}

/* Backward: at every input and position, over its nonzeros: dx from both paths, dmu and ds2 at the nonzeros alone. */

static inline __attribute__((always_inline)) void NAME(backward_task)(
    const int NV, const int variance, const int want_x, const int want_w, const geometry *s, const plan *p,
    const float *w, const float *x, const float *g, float *dx, float *sums, int64_t block, int lane, int first, int last) {
  const int shift = s->shift, taps = s->kh * s->kw;
  const int64_t L = (int64_t)1 << shift, each = variance ? 2 : 1;
  const int32_t base = p->rows[(int64_t)first * taps];
  const float *gb = g + block * s->oh * s->ow * s->outputs * L * each + lane;
  for (int ih = 0; ih < s->h; ih++)
    for (int iw = 0; iw < s->w; iw++) {
      const int fh = (ih + s->ph) % s->sh, fw = (iw + s->pw) % s->sw; /* taps of this phase of the stride reach here */
      const int oh = (ih + s->ph) / s->sh, ow = (iw + s->pw) / s->sw;
      const phase hp = s->rows_of[fh], wp = s->cols_of[fw];
      /* output row oh - a for the a-th tap of the phase: 0 <= oh - a < s->oh */
      const int a0 = oh - s->oh + 1 > 0 ? oh - s->oh + 1 : 0, a1 = oh + 1 < hp.count ? oh + 1 : hp.count;
      const int b0 = ow - s->ow + 1 > 0 ? ow - s->ow + 1 : 0, b1 = ow + 1 < wp.count ? ow + 1 : wp.count;
      const int start = hp.start * s->kw + hp.count * wp.start; /* taps are sorted by phase, then row, then column */
      const float *gp = gb + ((int64_t)oh * s->ow + ow) * s->outputs * L * each;
      for (int c = first; c < last; c++) {
        const int64_t xo = ((block * s->h + ih) * s->w + iw) * s->inputs * L + (int64_t)c * L + lane;
        const int32_t *rows = p->rows + (int64_t)c * taps + start;
        vf xi[4], xx[4], am[4], av[4];
        for (int i = 0; i < NV; i++) {
          xi[i] = NAME(load)(x + xo + i * WIDTH);
          xx[i] = xi[i] * xi[i];
          am[i] = av[i] = NAME(all)(0.0f);
        }
        const int whole = b0 == 0 && b1 == wp.count;
        for (int a = a0; a < a1; a = whole ? a1 : a + 1) {
          if (b0 >= b1) break;
          const int32_t k0 = rows[a * wp.count + b0], k1 = whole ? rows[a1 * wp.count] : rows[a * wp.count + b1];
          for (int32_t k = k0; k < k1; k++) {
            const float *at = gp + (((int64_t)p->offset[k] * each) << shift);
            vf mu = NAME(all)(w[2 * k]), s2 = NAME(all)(w[2 * k + 1]), dm = NAME(all)(0.0f), dv = dm;
            float *sum = sums + (int64_t)(k - base) * 2 * WIDTH;
            if (want_w) {
              dm = NAME(load)(sum);
              if (variance) dv = NAME(load)(sum + WIDTH);
            }
#pragma GCC unroll 4
            for (int i = 0; i < NV; i++) {
              vf gm = NAME(load)(at + i * WIDTH);
              if (want_x) am[i] += mu * gm;
              if (want_w) dm += gm * xi[i];
              if (variance) {
                vf gv = NAME(load)(at + L + i * WIDTH);
                if (want_x) av[i] += s2 * gv;
                if (want_w) dv += gv * xx[i];
              }
            }
            if (want_w) {
              NAME(store)(sum, dm);
              if (variance) NAME(store)(sum + WIDTH, dv);
            }
          }
        }
        if (want_x)
          for (int i = 0; i < NV; i++) NAME(store)(dx + xo + i * WIDTH, am[i] + (xi[i] + xi[i]) * av[i]);
      }
    }
}

static void NAME(backward)(const geometry *s, const plan *p, const float *w, const float *x, const float *g, float *dx,
                           float *dmu, float *ds2, int variance, int want_x, int want_w) {
  const int64_t L = (int64_t)1 << s->shift;
  const int NV = L % (4 * WIDTH) == 0 ? 4 : 2, lanes = NV * WIDTH, parts = (int)(L / lanes);
  int bands, *band = cut(p->rows, s->inputs, s->kh * s->kw, s->h * s->w == 1 ? p->count / 16 + 64 : 2048, &bands);
  const int64_t slices = (int64_t)s->blocks * parts;
  /* few bands: the batch is cut too, and partial sums are added in a fixed order, whatever the number of threads */
  const int64_t chunks = bands >= 16 ? 1 : (slices < 8 ? slices : 8);
  float *partial = want_w && chunks > 1 ? malloc(sizeof(float) * 2 * chunks * p->count) : NULL;
#pragma omp parallel
  {
    float *sums = NULL;
    int64_t room = 0;
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < bands * chunks; task++) {
      const int64_t b = task % bands, chunk = task / bands;
      const int first = band[b], last = band[b + 1], taps = s->kh * s->kw;
      const int32_t k0 = p->rows[(int64_t)first * taps], k1 = p->rows[(int64_t)last * taps];
      if (want_w) {
        const int64_t need = (int64_t)(k1 - k0) * 2 * WIDTH;
        if (need > room) {
          free(sums);
          sums = aligned_alloc(64, sizeof(float) * ((need + 15) / 16 * 16));
          room = need;
        }
        if (need) memset(sums, 0, sizeof(float) * need);
      }
      for (int64_t slice = chunk * slices / chunks; slice < (chunk + 1) * slices / chunks; slice++) {
#define RUN(nv, v, wx, ww) \
  NAME(backward_task)(nv, v, wx, ww, s, p, w, x, g, dx, sums, slice / parts, (int)(slice % parts) * lanes, first, last)
#define WANTS(nv, v) \
  if (want_x && want_w) RUN(nv, v, 1, 1); else if (want_x) RUN(nv, v, 1, 0); else RUN(nv, v, 0, 1);
        if (NV == 4) { if (variance) { WANTS(4, 1) } else { WANTS(4, 0) } }
        else { if (variance) { WANTS(2, 1) } else { WANTS(2, 0) } }
#undef WANTS
#undef RUN
      }
      if (want_w) {
        float *m = partial ? partial + 2 * chunk * p->count : NULL;
        for (int32_t k = k0; k < k1; k++) {
          const float a = NAME(total)(NAME(load)(sums + (int64_t)(k - k0) * 2 * WIDTH));
          const float c = variance ? NAME(total)(NAME(load)(sums + (int64_t)(k - k0) * 2 * WIDTH + WIDTH)) : 0.0f;
          if (partial) { m[2 * k] = a; m[2 * k + 1] = c; }
          else { dmu[p->slot[k]] = a; if (variance) ds2[p->slot[k]] = c; }
        }
      }
    }
    free(sums);
  }
  if (partial) {
#pragma omp parallel for schedule(static)
    for (int64_t k = 0; k < p->count; k++) {
      float a = 0, c = 0;
      for (int64_t chunk = 0; chunk < chunks; chunk++) {
        a += partial[2 * (chunk * p->count + k)];
        c += partial[2 * (chunk * p->count + k) + 1];
      }
      dmu[p->slot[k]] = a;
      if (variance) ds2[p->slot[k]] = c;
    }
    free(partial);
  }
  free(band);
}

