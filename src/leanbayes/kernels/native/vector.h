/* A vector register of one instruction set, and normal numbers in its lanes. Included once for each instruction set, as all
 * of the kernels; whoever includes them sets
 *   NAME(x)  x with the suffix of the instruction set
 *   WIDTH    floats in a register
 */

typedef float NAME(vf) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint32_t NAME(vu) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t NAME(vi) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

static inline vf NAME(load)(const float *p) { return *(const vf *)p; }
static inline void NAME(store)(float *p, vf v) { *(vf *)p = v; }
static inline vf NAME(all)(float a) { return (vf){0} + a; }
static inline vf NAME(root)(vf v) {
  for (int i = 0; i < WIDTH; i++) v[i] = __builtin_sqrtf(v[i]);
  return v;
}
static inline float NAME(total)(vf v) {
  float sum = 0;
  for (int i = 0; i < WIDTH; i++) sum += v[i];
  return sum;
}
static inline vf NAME(pick)(vi yes, vf a, vf b) { return (vf)(((vi)a & yes) | ((vi)b & ~yes)); }

/* Normal numbers: xoshiro128++ (Blackman and Vigna) in every lane, then Box-Muller with polynomials (Cephes). */

typedef struct { vu s0, s1, s2, s3; } NAME(rng);

static inline NAME(rng) NAME(seeded)(uint64_t seed, uint64_t stream) {
  NAME(rng) g;
  uint64_t state = mixed(seed) ^ mixed(stream + 0x9E3779B97F4A7C15ull);
  vu *parts[4] = {&g.s0, &g.s1, &g.s2, &g.s3};
  for (int p = 0; p < 4; p++)
    for (int i = 0; i < WIDTH; i++) (*parts[p])[i] = (uint32_t)(mixed(state += 0x9E3779B97F4A7C15ull) >> 32);
  return g;
}

static inline vu NAME(next)(NAME(rng) *g) {
  vu sum = g->s0 + g->s3, out = ((sum << 7) | (sum >> 25)) + g->s0, t = g->s1 << 9;
  g->s2 ^= g->s0; g->s3 ^= g->s1; g->s1 ^= g->s2; g->s0 ^= g->s3; g->s2 ^= t;
  g->s3 = (g->s3 << 11) | (g->s3 >> 21);
  return out;
}

static inline void NAME(normals)(NAME(rng) *g, vf *first, vf *second) {
  vu r1 = NAME(next)(g), r2 = NAME(next)(g);
  /* log of u in (0, 1): 24 bits and a half, split into 2^e m with m in [sqrt(1/2), sqrt 2) */
  vf u = (__builtin_convertvector((vi)(r1 >> 8), vf) + 0.5f) * 0x1p-24f;
  vi e = ((vi)u - 0x3f3504f3) >> 23;
  vf f = (vf)((vi)u - (e << 23)) - 1.0f, f2 = f * f;
  vf p = NAME(all)(7.0376836292e-2f);
  p = p * f - 1.1514610310e-1f; p = p * f + 1.1676998740e-1f; p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f; p = p * f - 1.6668057665e-1f; p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f; p = p * f + 3.3333331174e-1f;
  vf log_u = p * f * f2 + (f - 0.5f * f2) + __builtin_convertvector(e, vf) * 0.69314718056f;
  vf square = log_u * -2.0f, radius = NAME(root)(NAME(pick)(square > 0.0f, square, NAME(all)(0.0f)));
  /* an angle in [-pi/4, pi/4) from r2; quadrant and signs from bits of r1 that u did not use */
  vf t = __builtin_convertvector((vi)r2, vf) * 3.6572952e-10f, t2 = t * t;
  vf sine = ((t2 * -1.9515295891e-4f + 8.3321608736e-3f) * t2 - 1.6666654611e-1f) * t2 * t + t;
  vf cosine = ((t2 * 2.443315711809948e-5f - 1.388731625493765e-3f) * t2 + 4.166664568298827e-2f) * t2 * t2 - 0.5f * t2 + 1.0f;
  vi swap = -(vi)(r1 & 1);
  vf a = NAME(pick)(swap, cosine, sine), b = NAME(pick)(swap, sine, cosine);
  *first = radius * (vf)((vu)a ^ ((r1 << 30) & 0x80000000u));
  *second = radius * (vf)((vu)b ^ ((r1 << 29) & 0x80000000u));
}

static void NAME(fill)(float *out, int64_t n, uint64_t seed) {
  const int64_t piece = 4096;
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < (n + piece - 1) / piece; c++) {
    NAME(rng) g = NAME(seeded)(seed, (uint64_t)c);
    int64_t end = (c + 1) * piece < n ? (c + 1) * piece : n;
    for (int64_t i = c * piece; i < end; i += 2 * WIDTH) {
      vf pair[2];
      NAME(normals)(&g, &pair[0], &pair[1]);
      int64_t left = end - i < 2 * WIDTH ? end - i : 2 * WIDTH;
      memcpy(out + i, pair, 4 * left);
    }
  }
}

