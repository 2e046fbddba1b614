/* Backward: at every input and position, over its nonzeros: dx from both paths, dmu and ds2 at the nonzeros alone.
 *
 * Loads are what it costs, so it goes by tiles: s->tile outputs by a band of inputs, whose sums stay in the second cache
 * while a strip of rows goes by. So do the gradients near the strip, of as many tiles as have room: they are laid out tile by
 * tile, just before they are needed. Their rows have zeros at both ends, as far as taps and groups reach: no member needs an
 * exception. */

/* The gradients of y and of v = y's times slope, run by run of lanes, for some rows of the blocks of a unit; what came
 * after y is undone on the way. Lanes beyond the batch get zero. bias: sums by output of the gradient of y are added,
 * unless NULL. */
static void NAME(pair)(const geometry *s, const upstream *u, int64_t first, int members, int row0, int row1,
                       float *pairs, float *bias) {
  const int64_t O = s->outputs, T = s->tile, tiles = (O + T - 1) / T, each = u->slope ? 2 : 1;
  const padded p = s->pad;
  const float *line = u->line;
  if (p.left || p.width > p.left + (s->along_blocks ? members : s->ow))
    for (int64_t tile = 0; tile < tiles; tile++)
      for (int64_t row = tile * s->oh + row0; row < tile * s->oh + row1; row++) {
        const int64_t run = T * each * LANES, used = p.left + (s->along_blocks ? members : s->ow);
        memset(pairs + row * p.width * run, 0, sizeof(float) * (size_t)(p.left * run));
        memset(pairs + (row * p.width + used) * run, 0, sizeof(float) * (size_t)((p.width - used) * run));
      }
  for (int m = 0; m < members; m++) {
    const int64_t valid = s->batch - (first + m) * LANES;
    for (int64_t at = (int64_t)row0 * s->ow; at < (int64_t)row1 * s->ow; at++) {
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
static int64_t NAME(backward)(call *c, const geometry *shape, const plan *p, const float *mu, const float *sigma,
                              const float *x, const upstream *u, float *dx, float *dmu, float *ds2, float *dbias) {
  const geometry s = *shape;
  const int variance = u->slope != NULL, each = variance ? 2 : 1, want_x = dx != NULL, want_w = dmu != NULL;
  const int group = s.along_blocks ? MEMBERS : 1, tiles = (int)tiles_of(shape);
  const int threads = most_threads();
  const int64_t units = (s.blocks + (int64_t)group - 1) / group;
  const int64_t g_tile = times(times((int64_t)s.oh * s.pad.width, s.tile), LANES * each);
  /* a band of inputs has SUMS nonzeros of a tile, about; a strip has rows whose x and dx stay in the second cache */
  const int64_t per_input = p->count / ((int64_t)tiles * s.inputs) + 1;
  const int band = SUMS / per_input < 1 ? 1 : SUMS / per_input < s.inputs ? (int)(SUMS / per_input) : s.inputs;
  const int64_t bands = (s.inputs + band - 1) / band, row = (int64_t)s.w * band * group * LANES * 8;
  const int strip = STRIP / row < 1 ? 1 : STRIP / row < s.h ? (int)(STRIP / row) : s.h;
  /* tiles whose gradients near a strip stay in the second cache while bands go by */
  const int64_t around = s.along_blocks ? 1 : (strip - 1) / s.sh + (s.kh + s.sh - 1) / s.sh;
  const int64_t of_row = (int64_t)s.pad.width * s.tile * LANES * each * (int64_t)sizeof(float);
  const int64_t of_tile = (around < s.oh ? around : s.oh) * of_row;
  const int near = of_tile > NEAR ? 1 : (int)(NEAR / of_tile);
  /* parts of the batch, whose sums are added in a fixed order whatever the number of threads; where they are few, threads
   * share one, each with some of the bands */
  const int64_t chunks = units < 1 ? 1 : units < 8 ? units : 8, want = (8 + chunks - 1) / chunks, shares = want < bands ? want : bands;
  const int64_t numbers = each * p->count;
  const int workers = threads < chunks * shares ? threads : (int)(chunks * shares);
  int32_t most = 0; /* nonzeros of a tile and a band */
  for (int64_t tile = 0; want_w && tile < tiles; tile++)
    for (int64_t b = 0; b < bands; b++) {
      const int64_t first = b * band, last = first + band < s.inputs ? first + band : s.inputs;
      const int32_t *rows = p->rows + tile * s.inputs * s.segments;
      const int32_t here = rows[last * s.segments] - rows[first * s.segments];
      most = here > most ? here : most;
    }
  float *w = piece(c, 2 * p->count), *partial = want_w ? piece(c, times(chunks, numbers)) : NULL;
  float *bias = dbias ? piece(c, times(chunks * LANES, s.outputs)) : NULL;
  const pieces of_pairs = piece_each(c, times(tiles, g_tile), workers);
  const pieces of_sums = piece_each(c, want_w ? (each * (int64_t)most + WIDTH - 1) / WIDTH * WIDTH * WIDTH : 0, workers);
  if (lacks(c)) return needed(c);
  pack(p, mu, sigma, w);
  if (want_w) memset(partial, 0, sizeof(float) * (size_t)(chunks * numbers));
  if (dbias) memset(bias, 0, sizeof(float) * (size_t)(chunks * s.outputs * LANES));
  int64_t at_work = 0; /* threads that have a piece of their own; there may be more threads than tasks */
#pragma omp parallel num_threads(threads)
  {
  int64_t own = -1;
#pragma omp for schedule(dynamic, 1)
  for (int64_t task = 0; task < chunks * shares; task++) {
    if (own < 0) own = __atomic_fetch_add(&at_work, 1, __ATOMIC_RELAXED);
    const int64_t chunk = task / shares, share = task % shares;
    for (int64_t unit = chunk * units / chunks; unit < (chunk + 1) * units / chunks; unit++) {
      const int64_t block = unit * group;
      const int members = s.blocks - block < group ? (int)(s.blocks - block) : group;
      float *pairs = of_pairs.first + own * of_pairs.step, *own_bias = bias ? bias + chunk * s.outputs * LANES : NULL;
      int paired = 0;
      for (int ih = 0; ih < s.h; ih += strip) {
        const int below = ih + strip < s.h ? ih + strip : s.h, reached = (below - 1 + s.ph) / s.sh + 1;
        const int needed_rows = below == s.h || reached > s.oh ? s.oh : reached;
        if (paired < needed_rows) NAME(pair)(&s, u, block, members, paired, needed_rows, pairs, share ? NULL : own_bias);
        paired = paired < needed_rows ? needed_rows : paired;
        if (!want_x && !want_w) continue;
        for (int outer = 0; outer < tiles; outer += near)
          for (int64_t b = share * bands / shares; b < (share + 1) * bands / shares; b++)
            for (int tile = outer; tile < outer + near && tile < tiles; tile++) {
              const int first = (int)b * band, last = first + band < s.inputs ? first + band : s.inputs;
              const int32_t *rows = p->rows + (int64_t)tile * s.inputs * s.segments;
              const int32_t k0 = rows[(int64_t)first * s.segments], k1 = rows[(int64_t)last * s.segments];
              const int64_t vectors = (int64_t)(k1 - k0) * each, room = (vectors + WIDTH - 1) / WIDTH * WIDTH * WIDTH;
              float *sums = of_sums.first + own * of_sums.step;
              if (want_w) memset(sums, 0, sizeof(float) * (size_t)room);
#define RUN(v, wx, ww) \
  NAME(backward_tile)(v, wx, ww, &s, p, w, x, pairs + tile * g_tile, dx, sums, k0, block, members, tile, first, last, ih, \
                        below)
#define WANTS(v) \
    if (want_x && want_w) RUN(v, 1, 1); else if (want_x) RUN(v, 1, 0); else RUN(v, 0, 1);
              if (variance) { WANTS(1) } else { WANTS(0) }
#undef WANTS
#undef RUN
              if (!want_w) continue;
              float *to = partial + chunk * numbers + (int64_t)k0 * each;
              for (int64_t v = 0; v < vectors; v += WIDTH) {
                const vf found = NAME(sums_of)(sums + v * WIDTH);
                if (v + WIDTH <= vectors) NAME(store)(to + v, NAME(load)(to + v) + found);
                else for (int64_t i = v; i < vectors; i++) to[i] += found[i - v];
              }
            }
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
  return done(c);
}

#undef PARTS
#undef MEMBERS
#undef EACH_RANGE
#undef REGISTERS
#undef INLINE
