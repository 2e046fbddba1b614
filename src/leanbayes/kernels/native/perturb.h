/* Noise on a dense layer's outputs: y = mean + sqrt(v) eps in one pass, and all that the backward pass needs of it,
 * slope = d y / d v = eps / (2 sqrt(v)): zero where there is no variance, so that the gradient is finite. */

static inline void NAME(perturb_two)(NAME(rng) *g, const float *mean, const float *v, float *y, float *slope) {
  vf e[2];
  NAME(normals)(g, &e[0], &e[1]);
#pragma GCC unroll 2
  for (int j = 0; j < 2; j++) {
    const vf variance = NAME(load)(v + j * WIDTH);
    const vf half = NAME(where)(variance >= 0x1p-126f, 0.5f * e[j] * NAME(inverse_root)(variance));
    NAME(store)(y + j * WIDTH, NAME(load)(mean + j * WIDTH) + 2.0f * variance * half);
    NAME(store)(slope + j * WIDTH, half);
  }
}

/* Pieces have streams of their own: the noise does not depend on the number of threads. */
static void NAME(perturb)(const float *mean, const float *v, float *y, float *slope, int64_t count, uint64_t seed) {
  const int64_t piece = 1 << 14, pieces = (count + piece - 1) / piece, pair = 2 * WIDTH;
#pragma omp parallel for schedule(static) if (pieces > 1)
  for (int64_t p = 0; p < pieces; p++) {
    NAME(rng) g = NAME(seeded)(seed, (uint64_t)p);
    const int64_t end = (p + 1) * piece < count ? (p + 1) * piece : count;
    int64_t i = p * piece;
    for (; i + pair <= end; i += pair) NAME(perturb_two)(&g, mean + i, v + i, y + i, slope + i);
    if (i < end) {
      const size_t rest = sizeof(float) * (size_t)(end - i);
      float at[4][2 * WIDTH] = {{0}};
      memcpy(at[0], mean + i, rest);
      memcpy(at[1], v + i, rest);
      NAME(perturb_two)(&g, at[0], at[1], at[2], at[3]);
      memcpy(y + i, at[2], rest);
      memcpy(slope + i, at[3], rest);
    }
  }
}
