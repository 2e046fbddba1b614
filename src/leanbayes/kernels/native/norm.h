/* Batch normalisation of a blocked activation, with a sum and a rectifier behind it if wanted.
 * Lanes beyond the batch (the last block may have some) count for nothing, and their gradient is zero.
 */

/* The gradient behind the rectifier, at one run of lanes of a channel. */
static inline vf NAME(before_rectifier)(const upstream *u, int64_t channels, int64_t at, int64_t c, vf y) {
  const vf g = NAME(load)(u->g + at);
  if (u->out) return NAME(unless)(NAME(load)(u->out + at) <= 0.0f, g);
  if (u->rectified) return NAME(unless)(y * u->line[4 * channels + c] + u->line[5 * channels + c] <= 0.0f, g);
  return g;
}

/* Two sums by channel, one behind the other. Forward (u NULL): of x - shift and its square. Backward: of dy and dy (x - shift), where the gradient
 * behind the rectifier is also written to `masked` unless that is NULL. */
static int64_t NAME(norm_sums)(call *call, const extent *n, const float *x, const upstream *u, const float *shift,
                               float *masked, double *sums) {
  const int64_t C = n->channels, rows = n->blocks * n->positions, step = 64, parts = (rows + step - 1) / step;
  const int threads = most_threads();
  double *partial = piece(call, 4 * parts * C);
  const pieces of_sums = piece_each(call, 2 * C * WIDTH, threads);
  if (lacks(call)) return needed(call);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t part = 0; part < parts; part++) {
    float *own_sums = own(of_sums);
    memset(own_sums, 0, sizeof(float) * (size_t)(2 * C * WIDTH));
    for (int64_t r = part * step; r < (part + 1) * step && r < rows; r++) {
      const int64_t valid = n->batch - r / n->positions * LANES;
      for (int64_t c = 0; c < C; c++) {
        const vf middle = NAME(all)(shift[c]);
        vf a = NAME(load)(own_sums + 2 * c * WIDTH), b = NAME(load)(own_sums + (2 * c + 1) * WIDTH);
#pragma GCC unroll 4
        for (int i = 0; i < LANES; i += WIDTH) {
          const int64_t at = (r * C + c) * LANES + i;
          const vf here = NAME(load)(x + at);
          vf centred = here - middle, dy = centred;
          if (u) {
            dy = NAME(before_rectifier)(u, C, at, c, here);
            if (masked) NAME(store)(masked + at, dy);
          }
          if (valid < LANES) dy = NAME(lanes_of)(dy, i, valid);
          a += dy;
          b += dy * centred;
        }
        NAME(store)(own_sums + 2 * c * WIDTH, a);
        NAME(store)(own_sums + (2 * c + 1) * WIDTH, b);
      }
    }
    for (int64_t c = 0; c < 2 * C; c++) {
      double sum = 0;
      for (int i = 0; i < WIDTH; i++) sum += (double)own_sums[c * WIDTH + i];
      partial[part * 2 * C + c] = sum;
    }
  }
  for (int64_t c = 0; c < C; c++) {
    sums[c] = sums[C + c] = 0;
    for (int64_t part = 0; part < parts; part++) {
      sums[c] += partial[(part * C + c) * 2];
      sums[C + c] += partial[(part * C + c) * 2 + 1];
    }
  }
  return 0;
}

/* y = a x + b by channel (x itself where a is NULL), plus `other` unless that is NULL, rectified if wanted. */
static void NAME(affine)(const extent *n, const float *x, const float *a, const float *b, const float *other, float *y,
                         int rectify) {
  const int64_t rows = n->blocks * n->positions;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < n->channels; c++)
#pragma GCC unroll 4
      for (int i = 0; i < LANES; i += WIDTH) {
        const int64_t at = (r * n->channels + c) * LANES + i;
        vf out = NAME(load)(x + at);
        if (a) out = out * a[c] + b[c];
        if (other) out += NAME(load)(other + at);
        if (rectify) out = NAME(rectified)(out);
        NAME(store)(y + at, out);
      }
}

/* dx = a dy - b - c (x - mean) by channel, dy the gradient behind the rectifier. */
static void NAME(norm_input)(const extent *n, const float *x, const upstream *u, float *dx) {
  const int64_t C = n->channels, rows = n->blocks * n->positions;
  const float *line = u->line;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; r++) {
    const int64_t valid = n->batch - r / n->positions * LANES;
    for (int64_t c = 0; c < C; c++)
#pragma GCC unroll 4
      for (int i = 0; i < LANES; i += WIDTH) {
        const int64_t at = (r * C + c) * LANES + i;
        const vf here = NAME(load)(x + at), dy = NAME(before_rectifier)(u, C, at, c, here);
        const vf out = dy * line[c] - line[C + c] - (here - line[3 * C + c]) * line[2 * C + c];
        NAME(store)(dx + at, valid < LANES ? NAME(lanes_of)(out, i, valid) : out);
      }
  }
}
