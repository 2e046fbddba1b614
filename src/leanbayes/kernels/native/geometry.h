/* The shapes that kernels work on, read from lists of numbers and checked: they are divided by, and every address follows from
 * them. */

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

/* Of a blocked activation. */
typedef struct { int64_t blocks, positions, channels, batch; } extent;

/* The taps k in [from, to) with 0 <= at + k < size. */
static inline span inside(int at, int size, int taps) {
  span s = {at < 0 ? -at : 0, size - at < taps ? size - at : taps};
  return s;
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

enum { NUMBERS = 15, EDGE = INT32_MAX / 8 };

/* Outputs of one side, or 0 where its numbers make no sense; no sum of a few of them overflows an int. */
static int64_t out_of(int64_t size, int64_t kernel, int64_t stride, int64_t padding) {
  if (size < 1 || size > EDGE || kernel < 1 || kernel > EDGE || padding < 0 || padding > EDGE) return 0;
  if (stride < 1 || stride > MAX_STRIDE || size + 2 * padding < kernel) return 0;
  return (size + 2 * padding - kernel) / stride + 1;
}

/* The next argument as a geometry: outputs, inputs, groups, and of height and width kernel, stride, padding, size and output
 * size; batch, tile. 0 where it was refused. */
static int described(call *c, geometry *s) {
  const int64_t *n = elements(c, INT64, NUMBERS);
  if (c->error) return 0;
  const int64_t oh = out_of(n[9], n[3], n[5], n[7]), ow = out_of(n[10], n[4], n[6], n[8]);
  int right = oh > 0 && ow > 0 && oh == n[11] && ow == n[12];
  right = right && n[0] >= 1 && n[0] <= EDGE && n[1] >= 1 && n[1] <= EDGE && n[2] >= 1 && n[2] <= EDGE;
  right = right && n[0] % n[2] == 0 && n[1] % n[2] == 0;
  right = right && n[13] >= 0 && n[13] <= EDGE && n[14] >= 1 && n[14] <= n[0];
  if (!right) { refuse(c, SHAPE); return 0; }
  const int64_t whole = times(n[9] + 2 * n[7], n[10] + 2 * n[8]), blocks = (n[13] + LANES - 1) / LANES;
  const int64_t channels = n[0] > n[1] ? n[0] : n[1], lanes = times(blocks, LANES);
  if (whole > INT32_MAX || times(oh, ow) > INT32_MAX || times(times(whole, channels), lanes) > MOST ||
      times(times(times(oh, ow), n[0]), lanes) > MOST) {
    refuse(c, LARGE);
    return 0;
  }
  *s = (geometry){.outputs = (int)n[0], .inputs = (int)n[1], .groups = (int)n[2], .kh = (int)n[3], .kw = (int)n[4],
                  .sh = (int)n[5], .sw = (int)n[6], .ph = (int)n[7], .pw = (int)n[8], .h = (int)n[9], .w = (int)n[10],
                  .oh = (int)oh, .ow = (int)ow, .batch = (int)n[13], .tile = (int)n[14], .blocks = (int)blocks};
  s->along_blocks = oh * ow == 1;
  s->segments = s->along_blocks ? s->kh * s->kw : s->kh * s->sw;
  phases(s->rows_of, s->kh, s->sh);
  phases(s->cols_of, s->kw, s->sw);
  s->pad = padding_of(s);
  return 1;
}

static int64_t tiles_of(const geometry *s) { return (s->outputs + (int64_t)s->tile - 1) / s->tile; }

/* The weight, if the numbers of its plans fit into 32 bits; else 0. */
static int64_t weights_of(const geometry *s) {
  const int64_t taps = (int64_t)s->kh * s->kw, weights = times(times(s->outputs, s->inputs / s->groups), taps);
  const int64_t forward = times(((int64_t)s->kh - 1) * s->w + s->kw, s->inputs), segments = times(s->inputs, s->segments);
  const int64_t backward = times((int64_t)s->kh * s->pad.width + s->kw + 1, s->tile);
  const int fits = weights < INT32_MAX && forward < INT32_MAX && backward < INT32_MAX &&
                   times(s->outputs, taps) < INT32_MAX && times(tiles_of(s), segments) < INT32_MAX;
  return fits ? weights : 0;
}

/* Elements of the input and of the output of a geometry. */
static int64_t inputs_of(const geometry *s) { return (int64_t)s->blocks * s->h * s->w * s->inputs * LANES; }
static int64_t outputs_of(const geometry *s) { return (int64_t)s->blocks * s->oh * s->ow * s->outputs * LANES; }

/* The next argument as the extent of a blocked activation. 0 where it was refused. */
static int extended(call *c, extent *e) {
  const int64_t *n = elements(c, INT64, 4);
  if (c->error) return 0;
  const int right = n[0] >= 0 && n[1] >= 1 && n[2] >= 1 && n[3] >= 0 && n[3] <= EDGE &&
                    n[0] == (n[3] + LANES - 1) / LANES;
  if (!right) refuse(c, SHAPE);
  else if (n[1] > MOST || n[2] > EDGE || times(times(times(n[0], n[1]), n[2]), LANES) > MOST) refuse(c, LARGE);
  *e = (extent){n[0], n[1], n[2], n[3]};
  return !c->error;
}

static int64_t elements_of(const extent *e) { return e->blocks * e->positions * e->channels * LANES; }

/* Activations in torch's channels-last order. */
typedef struct { int64_t data, positions, channels; } images;

/* What is read of such: factor x + shift, of a mean and a variance and by channel, plus another term; all but x may be NULL. */
typedef struct { const float *mean, *variance, *factor, *shift, *other_mean, *other_variance; } terms;

/* A convolution by its numbers: weights [outputs][taps][inputs]. */
typedef struct { int64_t data, inputs, outputs, taps; } filter;

/* Windows along one dimension of images. */
typedef struct { int64_t size, kernel, stride, padding, dilation, out; } axis;
typedef struct { images n; axis rows, columns; } windows;

/* The numbers of images, checked. 0 where they were refused. */
static int images_of(call *c, int64_t data, int64_t positions, int64_t channels, images *n) {
  *n = (images){data, positions, channels};
  if (data < 0 || channels < 1 || positions < 1) refuse(c, SHAPE);
  else if (data > MOST || positions > MOST || channels > MOST || times(times(data, positions), channels) > MOST / 4) refuse(c, LARGE);
  return !c->error;
}

/* Six numbers as the windows of one dimension; each begins inside the image, or in the padding before it. */
static axis axis_of(call *c, const int64_t *n) {
  const axis a = {n[0], n[1], n[2], n[3], n[4], n[5]};
  int right = n[3] >= 0 && n[3] <= EDGE;
  for (int i = 0; i < 6; i++) right = right && (i == 3 || (n[i] >= 1 && n[i] <= EDGE));
  if (!right || a.padding >= a.kernel * a.dilation || (a.out - 1) * a.stride >= a.size + a.padding) refuse(c, SHAPE);
  return a;
}

/* The next argument as windows: data, channels, and of rows and of columns size, kernel, stride, padding, dilation, windows. */
static int windowed(call *c, windows *s) {
  const int64_t *n = elements(c, INT64, 14);
  if (c->error) return 0;
  s->rows = axis_of(c, n + 2);
  s->columns = axis_of(c, n + 8);
  if (c->error || !images_of(c, n[0], times(s->rows.size, s->columns.size), n[1], &s->n)) return 0;
  const int64_t rows = s->rows.size > s->rows.out ? s->rows.size : s->rows.out;
  const int64_t strip = times(times(rows, s->columns.out), s->n.channels);
  if (strip > MOST / 64 || times(times(times(s->rows.out, s->columns.out), s->n.channels), s->n.data) > MOST) refuse(c, LARGE);
  return !c->error;
}

/* A convolution of stride 1 in torch's own order, of so many samples of a batch. A padded copy of an image has rows of `row` and
 * channels of `plane` numbers. line: numbers that are computed of a channel of the output, the ends of rows among them. */
typedef struct { int64_t samples, batch, inputs, outputs, kh, kw, ph, pw, h, w, oh, ow, row, plane, line; } narrow;

/* An array for every sample, or one for all of them: a step of 0. */
typedef struct { float *first; int64_t step; } each;

/* The next argument as such a convolution: samples, batch, inputs, outputs, and of height and width kernel, padding and size.
 * 0 where it was refused. */
static int narrowed(call *c, narrow *s) {
  const int64_t *n = elements(c, INT64, 10);
  if (c->error) return 0;
  const int64_t oh = out_of(n[8], n[4], 1, n[6]), ow = out_of(n[9], n[5], 1, n[7]);
  int right = oh > 0 && ow > 0;
  for (int i = 0; i < 4; i++) right = right && n[i] >= 1 && n[i] <= EDGE;
  if (!right) { refuse(c, SHAPE); return 0; }
  const int64_t row = n[9] + 2 * n[7], plane = times(n[8] + 2 * n[6], row), line = (oh - 1) * row + ow;
  const int64_t data = times(n[0], n[1]), weights = times(times(n[2], n[3]), times(n[4], n[5]));
  if (times(times(data, n[2]), plane) > MOST / 64 || times(times(data, n[3]), plane) > MOST / 64 ||
      times(n[0], weights) > MOST || times(n[2], plane) > INT32_MAX) {
    refuse(c, LARGE);
    return 0;
  }
  *s = (narrow){n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], oh, ow, row, plane, line};
  return 1;
}

/* The next argument as `size` numbers for every sample, or for all of them. */
static each each_of(call *c, int64_t samples, int64_t size) {
  const int own = next_count(c) != size;
  return (each){floats(c, own ? times(samples, size) : size), own ? size : 0};
}
