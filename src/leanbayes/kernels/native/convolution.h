/* Convolutions of stride 1 with weights of their own for every sample, where images and channels are few.
 *
 * An image is copied once, with its padding. There every tap is the same line of numbers from another place on, across the
 * ends of rows; outputs stay in registers, some channels by some vectors, and what belongs to the ends of rows is dropped. */

#if WIDTH == 16
enum { NAME(ACROSS) = 5 }; /* vectors; 32 registers hold 4 x 5 sums */
#else
enum { NAME(ACROSS) = 3 };
#endif

/* places: of the taps of all inputs in a padded copy. `no` channels of the output by `nv` vectors of positions; both are known when this is compiled. */
static inline __attribute__((always_inline)) void NAME(tile)(int64_t taps, const int32_t *places, const float *x,
                                                             const float *w, const float *bias, float *to, int64_t step,
                                                             int no, int nv) {
  vf sums[4][NAME(ACROSS)];
#pragma GCC unroll 4
  for (int o = 0; o < no; o++)
#pragma GCC unroll 5
    for (int v = 0; v < nv; v++) sums[o][v] = NAME(all)(bias ? bias[o] : 0.0f);
  for (int64_t k = 0; k < taps; k++) {
    const float *at = x + places[k];
    vf here[NAME(ACROSS)];
#pragma GCC unroll 5
    for (int v = 0; v < nv; v++) { here[v] = NAME(load)(at + v * WIDTH); HOLD(here[v]); }
#pragma GCC unroll 4
    for (int o = 0; o < no; o++) {
      const vf weight = NAME(all)(w[o * taps + k]);
#pragma GCC unroll 5
      for (int v = 0; v < nv; v++) { sums[o][v] += weight * here[v]; HOLD(sums[o][v]); }
    }
  }
#pragma GCC unroll 4
  for (int o = 0; o < no; o++)
#pragma GCC unroll 5
    for (int v = 0; v < nv; v++) NAME(store)(to + o * step + v * WIDTH, sums[o][v]);
}

#define TILE(no, nv) \
  case (no) * 8 + (nv): NAME(tile)(taps, places, x, w, bias, to, step, no, nv); break;
#define TILES(no) TILE(no, 1) TILE(no, 2) TILE(no, 3)
#if WIDTH == 16
#define MORE(no) TILE(no, 4) TILE(no, 5)
#else
#define MORE(no)
#endif

static void NAME(any_tile)(int64_t taps, const int32_t *places, const float *x, const float *w, const float *bias, float *to,
                           int64_t step, int no, int nv) {
  switch (no * 8 + nv) { TILES(1) TILES(2) TILES(3) TILES(4) MORE(1) MORE(2) MORE(3) MORE(4) }
}

#undef TILE
#undef TILES
#undef MORE

/* Rows of so many numbers from one distance to another; too short for a call of memcpy. */
static inline void NAME(rows)(int64_t count, int64_t length, const float *from, int64_t from_step, float *to, int64_t to_step) {
  for (int64_t r = 0; r < count; r++, from += from_step, to += to_step) {
    int64_t i = 0;
    for (; i + WIDTH <= length; i += WIDTH) NAME(store)(to + i, NAME(load)(from + i));
    for (; i + 4 <= length; i += 4) memcpy(to + i, from + i, 16);
    for (; i < length; i++) to[i] = from[i];
  }
}

/* An image of a sample, from its padded copy. All lines come before their rows are copied: reading at once what was written in
 * other pieces would wait. */
static void NAME(image)(const narrow *s, const int32_t *places, const float *x, const float *w, const float *bias, float *lines,
                        float *y) {
  const int64_t taps = s->inputs * s->kh * s->kw, vectors = (s->line + WIDTH - 1) / WIDTH, step = vectors * WIDTH;
  for (int64_t v = 0; v < vectors; v += NAME(ACROSS)) {
    const int nv = vectors - v < NAME(ACROSS) ? (int)(vectors - v) : NAME(ACROSS);
    for (int64_t o = 0; o < s->outputs; o += 4) {
      const int no = s->outputs - o < 4 ? (int)(s->outputs - o) : 4;
      float *to = lines + o * step + v * WIDTH;
      NAME(any_tile)(taps, places, x + v * WIDTH, w + o * taps, bias ? bias + o : NULL, to, step, no, nv);
    }
  }
  for (int64_t o = 0; o < s->outputs; o++) NAME(rows)(s->oh, s->ow, lines + o * step, s->row, y + o * s->oh * s->ow, s->ow);
}

static int64_t NAME(convolve)(call *c, const narrow *s, each x, each w, each bias, float *y) {
  const int64_t padded = s->inputs * s->plane + WIDTH; /* the last vector of the last tap may reach beyond */
  const pieces copies = piece_each(c, padded, most_threads()), outputs = piece_each(c, s->outputs * (s->line + WIDTH), most_threads());
  int32_t *places = piece(c, s->inputs * s->kh * s->kw);
  if (lacks(c)) return needed(c);
  for (int64_t k = 0, taps = s->kh * s->kw; k < s->inputs * taps; k++)
    places[k] = (int32_t)(k / taps * s->plane + k % taps / s->kw * s->row + k % s->kw);
  const int64_t all = s->samples * s->batch, size = s->h * s->w;
#pragma omp parallel
  {
    float *copy = own(copies), *lines = own(outputs);
    const float *last = NULL;
    memset(copy, 0, sizeof(float) * (size_t)padded);
#pragma omp for schedule(static)
    for (int64_t k = 0; k < all; k++) { /* samples go by first where they share an image, else the data of a sample */
      const int64_t sample = x.step ? k / s->batch : k % s->samples, datum = x.step ? k % s->batch : k / s->samples;
      const float *image = x.first + sample * x.step + datum * s->inputs * size;
      for (int64_t i = 0; image != last && i < s->inputs; i++)
        NAME(rows)(s->h, s->w, image + i * size, s->w, copy + i * s->plane + s->ph * s->row + s->pw, s->row);
      last = image;
      NAME(image)(s, places, copy, w.first + sample * w.step, bias.first ? bias.first + sample * bias.step : NULL, lines,
                  y + (sample * s->batch + datum) * s->outputs * s->oh * s->ow);
    }
  }
  return done(c);
}
