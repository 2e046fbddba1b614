/* Local reparameterisation at the nonzeros of a weight: forward and backward of
 *   y = sum_k mu_k x + sqrt(sum_k sigma_k^2 x^2) eps
 * for Linear and Conv2d, on activations in blocks of the batch. Plain C behind a C interface: it needs neither torch's nor
 * Python's headers, and the thread pool is the one torch brought along. Compiled once per instruction set and chosen at run
 * time, so that one library runs on every machine.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MEAN, MOMENTS, NOISE, GIVEN };
enum { MAX_STRIDE = 8 };

typedef struct { int from, to; } span;
typedef struct { int start, count; } phase; /* of the taps that meet one remainder of the stride */

typedef struct {
  int outputs, inputs, groups, kh, kw, sh, sw, ph, pw, h, w, oh, ow, blocks, shift;
  phase rows_of[MAX_STRIDE], cols_of[MAX_STRIDE];
} geometry;

/* Nonzeros in the order of a pass. rows: where each (channel, tap) begins. offset: of the activation it meets, in lanes.
 * slot: where its parameters are stored. */
typedef struct {
  int64_t count;
  const int32_t *rows, *offset, *slot;
} plan;

/* Of a blocked activation. */
typedef struct { int64_t blocks, positions, channels, lanes, batch; } extent;

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

static void phases(phase *of, int taps, int stride) {
  int start = 0;
  for (int f = 0; f < stride; f++) {
    of[f].start = start;
    of[f].count = f < taps ? (taps - f + stride - 1) / stride : 0;
    start += of[f].count;
  }
}

static geometry described(const int32_t *n) {
  geometry s = {.outputs = n[0], .inputs = n[1], .groups = n[2], .kh = n[3], .kw = n[4], .sh = n[5], .sw = n[6],
                .ph = n[7], .pw = n[8], .h = n[9], .w = n[10], .oh = n[11], .ow = n[12], .blocks = n[13], .shift = n[14]};
  phases(s.rows_of, s.kh, s.sh);
  phases(s.cols_of, s.kw, s.sw);
  return s;
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISPATCH 1
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
#define NAME(x) x##_avx512
#define WIDTH 16
#include "all.h"
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

void leanbayes_normals(float *out, int64_t n, int64_t seed) { CALL(fill, out, n, (uint64_t)seed) }

/* Stable counting sort of `count` items: out[place] = in[...], ordered by key. */
static void sorted(const int32_t *in, int32_t *out, const int32_t *key, int64_t count, int64_t keys, int32_t *rows) {
  memset(rows, 0, sizeof(int32_t) * (keys + 1));
  for (int64_t i = 0; i < count; i++) rows[key[in[i]] + 1]++;
  for (int64_t k = 0; k < keys; k++) rows[k + 1] += rows[k];
  int32_t *next = malloc(sizeof(int32_t) * (keys + 1));
  memcpy(next, rows, sizeof(int32_t) * (keys + 1));
  for (int64_t i = 0; i < count; i++) out[next[key[in[i]]]++] = in[i];
  free(next);
}

/* The two plans of a weight (outputs, inputs / groups, kh, kw) with nonzeros at the flat indices `index`, in any order. */
void leanbayes_plan(const int32_t *shape, int64_t count, const int32_t *index, int32_t *rows_forward,
                    int32_t *offset_forward, int32_t *slot_forward, int32_t *rows_backward, int32_t *offset_backward,
                    int32_t *slot_backward) {
  const geometry s = described(shape);
  const int taps = s.kh * s.kw, per_group = s.inputs / s.groups, out_per_group = s.outputs / s.groups;
  int32_t *work = malloc(sizeof(int32_t) * 6 * (count + 1));
  int32_t *oc = work, *ic = oc + count, *tap = ic + count, *key = tap + count, *order = key + count, *half = order + count;
  for (int64_t k = 0; k < count; k++) {
    oc[k] = index[k] / (per_group * taps);
    ic[k] = index[k] / taps % per_group + oc[k] / out_per_group * per_group;
    tap[k] = index[k] % taps;
    order[k] = (int32_t)k;
  }
  int32_t *scratch = malloc(sizeof(int32_t) * ((s.inputs > s.outputs ? s.inputs : s.outputs) + 1));
  sorted(order, half, ic, count, s.inputs, scratch);
  for (int64_t k = 0; k < count; k++) key[k] = oc[k] * taps + tap[k];
  sorted(half, slot_forward, key, count, (int64_t)s.outputs * taps, rows_forward);
  for (int64_t k = 0; k < count; k++) {
    const int32_t at = slot_forward[k];
    offset_forward[k] = (tap[at] / s.kw * s.w + tap[at] % s.kw) * s.inputs + ic[at];
  }
  sorted(order, half, oc, count, s.outputs, scratch);
  for (int64_t k = 0; k < count; k++) {
    const int a = tap[k] / s.kw, b = tap[k] % s.kw;
    const phase r = s.rows_of[a % s.sh], c = s.cols_of[b % s.sw];
    key[k] = ic[k] * taps + r.start * s.kw + r.count * c.start + a / s.sh * c.count + b / s.sw;
  }
  sorted(half, slot_backward, key, count, (int64_t)s.inputs * taps, rows_backward);
  for (int64_t k = 0; k < count; k++) {
    const int32_t at = slot_backward[k];
    const int a = tap[at] / s.kw, b = tap[at] % s.kw;
    offset_backward[k] = -(a / s.sh * s.ow + b / s.sw) * s.outputs + oc[at];
  }
  free(scratch);
  free(work);
}

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

/* y, and for the backward pass slope = eps / (2 sqrt(v)) (the variance itself for MOMENTS); sigma is NULL for MEAN. */
void leanbayes_forward(const int32_t *shape, int64_t count, const int32_t *rows, const int32_t *offset,
                       const int32_t *slot, const float *mu, const float *sigma, const float *bias, const float *x,
                       const float *eps, float *y, float *slope, int64_t seed, int64_t mode) {
  const geometry s = described(shape);
  const plan p = {count, rows, offset, slot};
  float *w = packed(&p, mu, sigma);
  CALL(forward, &s, &p, w, bias, x, eps, y, slope, (uint64_t)seed, (int)mode)
  free(w);
}

/* Gradients of x (dx), mu and sigma (dmu, dsigma), each NULL where not wanted; dx and the pair one at least.
 * g: the gradient of y, and with a variance beside each run of lanes of it the gradient of v. */
void leanbayes_backward(const int32_t *shape, int64_t count, const int32_t *rows, const int32_t *offset,
                        const int32_t *slot, const float *mu, const float *sigma, const float *x, const float *g,
                        float *dx, float *dmu, float *dsigma) {
  const geometry s = described(shape);
  const plan p = {count, rows, offset, slot};
  float *w = packed(&p, mu, sigma);
  CALL(backward, &s, &p, w, x, g, dx, dmu, dsigma, sigma != NULL, dx != NULL, dmu != NULL)
  if (dsigma && sigma)
#pragma omp parallel for schedule(static)
    for (int64_t k = 0; k < count; k++) dsigma[k] *= 2.0f * sigma[k];
  free(w);
}

/* The gradient of y and that of v = gradient of y * slope, run by run of lanes. */
void leanbayes_pair(const float *gy, const float *slope, float *g, int64_t runs, int64_t lanes) {
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < runs; r++)
    for (int64_t i = 0; i < lanes; i++) {
      const float a = gy[r * lanes + i];
      g[2 * r * lanes + i] = a;
      g[(2 * r + 1) * lanes + i] = a * slope[r * lanes + i];
    }
}

/* (batch, channels, positions) to [blocks][positions][channels][lanes] and back; lanes beyond the batch are zero. */
enum { TILE = 16 };

void leanbayes_block(const float *x, float *y, int64_t batch, int64_t channels, int64_t positions, int64_t lanes) {
  const int64_t blocks = (batch + lanes - 1) / lanes;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < blocks; b++)
    for (int64_t c0 = 0; c0 < channels; c0 += TILE)
      for (int64_t s0 = 0; s0 < positions; s0 += TILE)
        for (int64_t c = c0; c < c0 + TILE && c < channels; c++)
          for (int64_t l0 = 0; l0 < lanes; l0 += TILE) {
            float tile[TILE][TILE];
            const int64_t width = positions - s0 < TILE ? positions - s0 : TILE;
            for (int64_t l = 0; l < TILE; l++) {
              const int64_t datum = b * lanes + l0 + l;
              for (int64_t s = 0; s < width; s++)
                tile[s][l] = datum < batch ? x[(datum * channels + c) * positions + s0 + s] : 0.0f;
            }
            for (int64_t s = 0; s < width; s++)
              memcpy(y + ((b * positions + s0 + s) * channels + c) * lanes + l0, tile[s], sizeof(tile[s]));
          }
}

void leanbayes_unblock(const float *y, float *x, int64_t batch, int64_t channels, int64_t positions, int64_t lanes) {
  const int64_t blocks = (batch + lanes - 1) / lanes;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < blocks; b++)
    for (int64_t c0 = 0; c0 < channels; c0 += TILE)
      for (int64_t s0 = 0; s0 < positions; s0 += TILE)
        for (int64_t c = c0; c < c0 + TILE && c < channels; c++)
          for (int64_t l0 = 0; l0 < lanes && b * lanes + l0 < batch; l0 += TILE) {
            float tile[TILE][TILE];
            const int64_t width = positions - s0 < TILE ? positions - s0 : TILE;
            for (int64_t s = 0; s < width; s++) {
              const float *run = y + ((b * positions + s0 + s) * channels + c) * lanes + l0;
              for (int64_t l = 0; l < TILE; l++) tile[l][s] = run[l];
            }
            for (int64_t l = 0; l < TILE && b * lanes + l0 + l < batch; l++)
              memcpy(x + ((b * lanes + l0 + l) * channels + c) * positions + s0, tile[l], sizeof(float) * width);
          }
}

/* y = gamma (x - mean) / sqrt(var + eps) + beta, rectified if wanted; mean and biased variance by channel come back. */
void leanbayes_norm(const int64_t *sizes, const float *x, const float *gamma, const float *beta, double eps, float *y,
                    float *mean, float *variance, int64_t rectify) {
  const extent n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
  const double count = (double)n.batch * (double)n.positions;
  double *sums = malloc(sizeof(double) * 2 * n.channels);
  float *line = malloc(sizeof(float) * 3 * n.channels), *a = line + n.channels, *b = a + n.channels;
  /* sums about a datum of the channel, so that squares do not cancel */
  for (int64_t c = 0; c < n.channels; c++) line[c] = x[c * n.lanes];
  CALL(norm_sums, &n, x, NULL, NULL, line, NULL, sums, sums + n.channels)
  for (int64_t c = 0; c < n.channels; c++) {
    const double m = sums[c] / count, v = sums[n.channels + c] / count - m * m;
    mean[c] = (float)(line[c] + m);
    variance[c] = (float)(v > 0 ? v : 0);
    const double slope = (gamma ? gamma[c] : 1.0) / __builtin_sqrt((double)variance[c] + eps);
    a[c] = (float)slope;
    b[c] = (float)((beta ? beta[c] : 0.0) - slope * (line[c] + m));
  }
  CALL(affine, &n, x, a, b, y, (int)rectify)
  free(line);
  free(sums);
}

void leanbayes_affine(const int64_t *sizes, const float *x, const float *a, const float *b, float *y, int64_t rectify) {
  const extent n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
  CALL(affine, &n, x, a, b, y, (int)rectify)
}

/* Gradients of x, gamma and beta; y: the output where it was rectified, else NULL. */
void leanbayes_norm_backward(const int64_t *sizes, const float *x, const float *g, const float *y, const float *mean,
                             const float *variance, const float *gamma, double eps, float *dx, float *dgamma,
                             float *dbeta) {
  const extent n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
  const double count = (double)n.batch * (double)n.positions;
  double *sums = malloc(sizeof(double) * 2 * n.channels);
  float *line = malloc(sizeof(float) * 4 * n.channels), *a = line + n.channels, *b = a + n.channels, *c = b + n.channels;
  for (int64_t k = 0; k < n.channels; k++) line[k] = (float)(1.0 / __builtin_sqrt((double)variance[k] + eps));
  CALL(norm_sums, &n, x, g, y, mean, line, sums, sums + n.channels)
  for (int64_t k = 0; k < n.channels; k++) {
    const double slope = (gamma ? gamma[k] : 1.0) * line[k];
    dbeta[k] = (float)sums[k];
    dgamma[k] = (float)sums[n.channels + k];
    a[k] = (float)slope;
    b[k] = (float)(slope * sums[k] / count);
    c[k] = (float)(slope * line[k] * sums[n.channels + k] / count);
  }
  CALL(norm_backward, &n, x, g, y, mean, a, b, c, dx)
  free(line);
  free(sums);
}
