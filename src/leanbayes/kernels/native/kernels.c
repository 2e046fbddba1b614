/* Local reparameterisation at the nonzeros of a weight: forward and backward of
 *   y = sum_k mu_k x + sqrt(sum_k sigma_k^2 x^2) eps
 * for Linear and Conv2d, on activations in blocks of the batch, and what networks do between such layers; and the noise of
 * dense layers. Plain C behind a C
 * interface: it needs neither torch's nor Python's headers, and the thread pool is the one torch brought along. Compiled once
 * per instruction set and chosen at run time, so that one library runs on every machine.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISPATCH 1
#include <immintrin.h>
#endif

enum { MEAN, NOISE, GIVEN };
enum { MAX_STRIDE = 8, LANES = 16 };
enum { SUMS = 192, STRIP = 384 << 10 }; /* nonzeros, and bytes, that the caches hold in the backward pass */

/* Keeps a vector in its register: a compiler would rather load it again for the second use, and loads are what is scarce. */
#if defined(__x86_64__) && defined(__GNUC__)
#define HOLD(v) __asm__("" : "+v"(v))
#else
#define HOLD(v)
#endif

typedef struct { int from, to; } span;
typedef struct { int start, count; } phase; /* of the taps that meet one remainder of the stride */
typedef struct { int from, to, q0, q1; } run; /* of taps, and the members of a group that they reach */

typedef struct { int left, width; } padded; /* rows of gradients: zeros on the left, and the whole with those on the right */

/* tile: outputs that the backward pass takes at a time. along_blocks: groups are not neighbours in a row but in blocks.
 * segments: of the nonzeros of an input and a tile, one for every row of the taps of a phase (for every tap along blocks). */
typedef struct {
  int outputs, inputs, groups, kh, kw, sh, sw, ph, pw, h, w, oh, ow, batch, tile, blocks, along_blocks, segments;
  phase rows_of[MAX_STRIDE], cols_of[MAX_STRIDE];
  padded pad;
} geometry;

/* Nonzeros in the order of a pass. rows: where each (channel, tap) begins. offset: of the activation it meets, in lanes.
 * slot: where its parameters are stored. */
typedef struct {
  int64_t count;
  const int32_t *rows, *offset, *slot;
} plan;

/* Of a blocked activation. */
typedef struct { int64_t blocks, positions, channels, batch; } extent;

/* Where a gradient comes from. g: of what came out in the end. out: that itself, where its sign is the rectifier's, else
 * NULL. y: the output of the operation. slope: d y / d v. line: of a normalisation in between (or NULL), six numbers a
 * channel: dx = l0 dy - l1 - l2 (x - l3), where the rectifier (if rectified) let pass what has y l4 + l5 > 0. */
typedef struct {
  const float *g, *out, *y, *slope, *line;
  int rectified;
} upstream;

static inline uint64_t mixed(uint64_t z) { /* splitmix64 */
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/* The taps k in [from, to) with 0 <= at + k < size. */
static inline span inside(int at, int size, int taps) {
  span s = {at < 0 ? -at : 0, size - at < taps ? size - at : taps};
  return s;
}

/* Rows r of `columns` taps each, from tap `start` on, as runs of taps that reach the same members; neighbours are joined. */
static inline int joined(run *runs, const span *reach, int columns, span r, int start) {
  int count = 0;
  for (int a = r.from; a < r.to; a++)
    for (int b = 0; b < columns; b++) {
      const int tap = start + a * columns + b;
      if (reach[b].from >= reach[b].to) continue;
      run *last = runs + count - 1;
      if (count && last->to == tap && last->q0 == reach[b].from && last->q1 == reach[b].to) last->to++;
      else runs[count++] = (run){tap, tap + 1, reach[b].from, reach[b].to};
    }
  return count;
}

/* Channels in bands of at most `limit` nonzeros: what stays in cache while positions go by. */
static int *cut(const int32_t *rows, int channels, int taps, int64_t limit, int *bands) {
  int *edge = malloc(sizeof(int) * (channels + 2)), count = 0;
  edge[count++] = 0;
  for (int c = 1; c < channels; c++)
    if (rows[(int64_t)(c + 1) * taps] - rows[(int64_t)edge[count - 1] * taps] > limit) edge[count++] = c;
  edge[count] = channels;
  *bands = count;
  return edge;
}

/* Memory of a thread that is kept for the next call, in large pages: fresh pages cost more than the work done in them, and
 * kernels that jump about in small ones wait for their addresses. */
static float *scratch(int which, int64_t floats) {
  static __thread float *kept[3];
  static __thread int64_t room[3];
  if (floats > room[which]) {
    const int64_t page = 1 << 21, bytes = (4 * floats + page - 1) / page * page;
    free(kept[which]);
    kept[which] = aligned_alloc(page, bytes);
    madvise(kept[which], bytes, MADV_HUGEPAGE);
    room[which] = bytes / 4;
  }
  return kept[which];
}

static void phases(phase *of, int taps, int stride) {
  int start = 0;
  for (int f = 0; f < stride; f++) {
    of[f].start = start;
    of[f].count = f < taps ? (taps - f + stride - 1) / stride : 0;
    start += of[f].count;
  }
}

/* How far beyond a row of gradients the taps of groups reach, of the largest group of any instruction set. */
static padded padding_of(const geometry *s) {
  const int members = 4;
  if (s->along_blocks) return (padded){0, members};
  int low = 0, high = s->ow - 1;
  for (int f = 0; f < s->sw; f++) {
    const int first = ((f - s->pw) % s->sw + s->sw) % s->sw, count = first < s->w ? (s->w - first + s->sw - 1) / s->sw : 0;
    const int from = (first + s->pw) / s->sw - s->cols_of[f].count + 1;
    const int to = (first + s->pw) / s->sw + (count + members - 1) / members * members - 1;
    if (count && s->cols_of[f].count) { low = from < low ? from : low; high = to > high ? to : high; }
  }
  return (padded){-low, high + 1 - low};
}

static geometry described(const int32_t *n) {
  geometry s = {.outputs = n[0], .inputs = n[1], .groups = n[2], .kh = n[3], .kw = n[4], .sh = n[5], .sw = n[6],
                .ph = n[7], .pw = n[8], .h = n[9], .w = n[10], .oh = n[11], .ow = n[12], .batch = n[13], .tile = n[14]};
  s.blocks = (s.batch + LANES - 1) / LANES;
  s.along_blocks = s.oh * s.ow == 1;
  s.segments = s.along_blocks ? s.kh * s.kw : s.kh * s.sw;
  phases(s.rows_of, s.kh, s.sh);
  phases(s.cols_of, s.kw, s.sw);
  s.pad = padding_of(&s);
  return s;
}

#ifdef DISPATCH
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,prefer-vector-width=512")
#define NAME(x) x##_avx512
#define WIDTH 16
#define GUESS(v) (vf)_mm512_rsqrt14_ps((__m512)(v))
#include "all.h"
#undef GUESS
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(x) x##_avx2
#define WIDTH 8
#include "all.h"
#pragma GCC pop_options
#endif
#define NAME(x) x##_plain
#define WIDTH 4
#include "all.h"

/* 0: any machine, 1: AVX2 and FMA, 2: AVX-512 */
static int best(void) {
#ifdef DISPATCH
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

/* Counts the changes of this interface: a library that was built before one is not called. */
int leanbayes_interface(void) { return 2; }

static int level = -1;

int leanbayes_level(int wanted) { /* the level in use; a wanted one of 0 or more is taken if the machine has it */
  if (level < 0) level = best();
  if (wanted >= 0) level = wanted < best() ? wanted : best();
  return level;
}

#ifdef DISPATCH
#define CALL(f, ...) \
  switch (leanbayes_level(-1)) { \
    case 2: f##_avx512(__VA_ARGS__); break; \
    case 1: f##_avx2(__VA_ARGS__); break; \
    default: f##_plain(__VA_ARGS__); \
  }
#else
#define CALL(f, ...) f##_plain(__VA_ARGS__)
#endif

#include "plan.h"
#include "layout.h"

/* mu and sigma^2 side by side in the order of a pass. */
static float *packed(const plan *p, const float *mu, const float *sigma) {
  float *w = malloc(sizeof(float) * 2 * (p->count + 1));
#pragma omp parallel for schedule(static)
  for (int64_t k = 0; k < p->count; k++) {
    const int32_t at = p->slot[k];
    w[2 * k] = mu[at];
    w[2 * k + 1] = sigma ? sigma[at] * sigma[at] : 0.0f;
  }
  return w;
}

/* y, and for the backward pass slope = eps / (2 sqrt(v)); sigma is NULL for MEAN. */
void leanbayes_forward(const int32_t *shape, int64_t count, const int32_t *rows, const int32_t *offset,
                       const int32_t *slot, const float *mu, const float *sigma, const float *bias, const float *x,
                       const float *eps, float *y, float *slope, int64_t seed, int64_t mode) {
  const geometry s = described(shape);
  const plan p = {count, rows, offset, slot};
  float *w = packed(&p, mu, sigma);
  CALL(forward, &s, &p, w, bias, x, eps, y, slope, (uint64_t)seed, (int)mode)
  free(w);
}

/* Gradients of x, mu, sigma and bias, each NULL where not wanted; g, out, y, slope, line, rectified: see upstream. */
void leanbayes_backward(const int32_t *shape, int64_t count, const int32_t *rows, const int32_t *offset,
                        const int32_t *slot, const float *mu, const float *sigma, const float *x, const float *g,
                        const float *out, const float *y, const float *slope, const float *line, int64_t rectified,
                        float *dx, float *dmu, float *dsigma, float *dbias) {
  const geometry s = described(shape);
  const plan p = {count, rows, offset, slot};
  const upstream u = {g, out, y, sigma ? slope : NULL, line, (int)rectified};
  float *w = packed(&p, mu, sigma);
  CALL(backward, &s, &p, w, x, &u, dx, dmu, dsigma, dbias)
  if (dsigma && sigma)
#pragma omp parallel for schedule(static)
    for (int64_t k = 0; k < count; k++) dsigma[k] *= 2.0f * sigma[k];
  free(w);
}

/* Mean and biased variance by channel. sizes: see extent. */
void leanbayes_moments(const int32_t *sizes, const float *x, float *mean, float *variance) {
  const extent n = {sizes[0], sizes[1], sizes[2], sizes[3]};
  const double count = (double)n.batch * (double)n.positions;
  double *sums = malloc(sizeof(double) * 2 * n.channels);
  /* sums about a datum of the channel, so that squares do not cancel */
  for (int64_t c = 0; c < n.channels; c++) mean[c] = x[c * LANES];
  CALL(norm_sums, &n, x, NULL, mean, NULL, sums, sums + n.channels)
  for (int64_t c = 0; c < n.channels; c++) {
    const double m = sums[c] / count, v = sums[n.channels + c] / count - m * m;
    mean[c] = (float)(mean[c] + m);
    variance[c] = (float)(v > 0 ? v : 0);
  }
  free(sums);
}

/* gamma (x - mean) / sqrt(variance + eps) + beta as scale x + level. */
static void leveled(int64_t c, const float *mean, const float *variance, const float *gamma, const float *beta, double eps,
                    float *scale, float *level) {
  const double slope = (gamma ? gamma[c] : 1.0) / __builtin_sqrt((double)variance[c] + eps);
  *scale = (float)slope;
  *level = (float)((beta ? beta[c] : 0.0) - slope * mean[c]);
}

/* y = gamma (x - mean) / sqrt(variance + eps) + beta (x itself without a mean), plus `other` if any, rectified if wanted. */
void leanbayes_finish(const int32_t *sizes, const float *x, const float *mean, const float *variance, const float *gamma,
                      const float *beta, double eps, const float *other, float *y, int64_t rectify) {
  const extent n = {sizes[0], sizes[1], sizes[2], sizes[3]};
  float *scale = malloc(sizeof(float) * 2 * n.channels), *level = scale + n.channels;
  for (int64_t c = 0; mean && c < n.channels; c++) leveled(c, mean, variance, gamma, beta, eps, scale + c, level + c);
  CALL(affine, &n, x, mean ? scale : NULL, level, other, y, (int)rectify)
  free(scale);
}

/* Gradients of gamma and beta, and the line that gives that of x (see upstream). x: what was normalised, by its own moments
 * if `own`. out: what came out, where a sum was rectified; else NULL. masked: the gradient behind the rectifier, or NULL. */
void leanbayes_norm_gradients(const int32_t *sizes, const float *x, const float *g, const float *out, int64_t rectified,
                              const float *mean, const float *variance, const float *gamma, const float *beta, double eps,
                              int64_t own, float *masked, float *line, float *dgamma, float *dbeta) {
  const extent n = {sizes[0], sizes[1], sizes[2], sizes[3]};
  const int64_t C = n.channels;
  const double count = (double)n.batch * (double)n.positions;
  double *sums = malloc(sizeof(double) * 2 * C);
  for (int64_t c = 0; c < C; c++) leveled(c, mean, variance, gamma, beta, eps, line + 4 * C + c, line + 5 * C + c);
  const upstream u = {g, out, x, NULL, line, (int)rectified};
  CALL(norm_sums, &n, x, &u, mean, masked, sums, sums + C)
  for (int64_t c = 0; c < C; c++) {
    const double inverse = 1.0 / __builtin_sqrt((double)variance[c] + eps), slope = (gamma ? gamma[c] : 1.0) * inverse;
    dbeta[c] = (float)sums[c];
    dgamma[c] = (float)(sums[C + c] * inverse);
    line[c] = (float)slope;
    line[C + c] = own ? (float)(slope * sums[c] / count) : 0.0f;
    line[2 * C + c] = own ? (float)(slope * inverse * inverse * sums[C + c] / count) : 0.0f;
    line[3 * C + c] = mean[c];
  }
  free(sums);
}

/* The gradient of x from such a line. */
void leanbayes_norm_input(const int32_t *sizes, const float *x, const float *g, const float *out, int64_t rectified,
                          const float *line, float *dx) {
  const extent n = {sizes[0], sizes[1], sizes[2], sizes[3]};
  const upstream u = {g, out, x, NULL, line, (int)rectified};
  CALL(norm_input, &n, x, &u, dx)
}

/* Max pooling, rectified if wanted; won: for the backward pass, or NULL. */
void leanbayes_pool(const int32_t *shape, const float *x, float *y, int8_t *won, int64_t rectify) {
  const geometry s = described(shape);
  CALL(pool, &s, x, y, won, (int)rectify)
}

void leanbayes_pool_backward(const int32_t *shape, const float *g, const int8_t *won, float *dx) {
  const geometry s = described(shape);
  CALL(pool_backward, &s, g, won, dx)
}

/* y = mean + sqrt(v) eps, and slope = d y / d v. */
void leanbayes_perturb(const float *mean, const float *v, float *y, float *slope, int64_t count, int64_t seed) {
  CALL(perturb, mean, v, y, slope, count, (uint64_t)seed)
}
