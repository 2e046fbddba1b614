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
static inline vf NAME(all)(float a) { return a - (vf){0}; } /* not + 0, which would turn -0 into 0 */
static inline vf NAME(pick)(vi yes, vf a, vf b) { return (vf)(((vi)a & yes) | ((vi)b & ~yes)); }
static inline vf NAME(where)(vi yes, vf a) { return (vf)((vi)a & yes); }
static inline vf NAME(unless)(vi no, vf a) { return (vf)((vi)a & ~no); }
static inline vf NAME(rectified)(vf a) { return NAME(unless)(a <= 0.0f, a); } /* NaN stays, as in torch */

/* v in the lanes before `valid`, zero behind; `at` is the first lane of v. */
static inline vf NAME(lanes_of)(vf v, int64_t at, int64_t valid) {
  if (at + WIDTH <= valid) return v;
  for (int i = 0; i < WIDTH; i++)
    if (at + i >= valid) v[i] = 0.0f;
  return v;
}

/* 1 / sqrt(v) to the last bits for normal numbers, finite for zero: a guess and Newton steps, a third of the time that a
 * division and a root take. The guess is the machine's where it has 14 bits, else from the exponent. */
static inline vf NAME(inverse_root)(vf v) {
  vf half = v * 0.5f;
#ifdef GUESS
  vf r = GUESS(NAME(pick)(v > 0x1p-126f, v, NAME(all)(0x1p-126f)));
  return r * (1.5f - half * r * r);
#else
  vf r = (vf)(0x5f375a86u - ((vu)v >> 1)); /* unsigned: lanes that nobody asked for may hold anything */
  r *= 1.5f - half * r * r;
  r *= 1.5f - half * r * r;
  r *= 1.5f - half * r * r;
  return r;
#endif
}

/* WIDTH vectors side by side to the vector of their sums, by halves. */
static inline vf NAME(sums_of)(const float *vectors) {
  vf v[WIDTH];
  for (int i = 0; i < WIDTH; i++) v[i] = NAME(load)(vectors + i * WIDTH);
#pragma GCC unroll 4
  for (int s = 1; s < WIDTH; s *= 2) {
    vi from = {0};
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++) from[i] = i / (2 * s) * (2 * s) + i % s + (i % (2 * s) < s ? 0 : WIDTH);
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH / (2 * s); i++)
      v[i] = __builtin_shuffle(v[2 * i], v[2 * i + 1], from) + __builtin_shuffle(v[2 * i], v[2 * i + 1], from + s);
  }
  return v[0];
}

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
  vf square = log_u * -2.0f;
  square = NAME(where)(square > 0.0f, square);
  vf radius = square * NAME(inverse_root)(square);
  /* an angle in [-pi/4, pi/4) from r2; quadrant and signs from bits of r1 that u did not use */
  vf t = __builtin_convertvector((vi)r2, vf) * 3.6572952e-10f, t2 = t * t;
  vf sine = ((t2 * -1.9515295891e-4f + 8.3321608736e-3f) * t2 - 1.6666654611e-1f) * t2 * t + t;
  vf cosine = ((t2 * 2.443315711809948e-5f - 1.388731625493765e-3f) * t2 + 4.166664568298827e-2f) * t2 * t2 - 0.5f * t2 + 1.0f;
  vi swap = -(vi)(r1 & 1);
  vf a = NAME(pick)(swap, cosine, sine), b = NAME(pick)(swap, sine, cosine);
  *first = radius * (vf)((vu)a ^ ((r1 << 30) & 0x80000000u));
  *second = radius * (vf)((vu)b ^ ((r1 << 29) & 0x80000000u));
}
