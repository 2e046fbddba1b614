/* Activations into blocks of the batch and back. */

/* batch, channels, positions of the next argument; the elements of both layouts. */
static int laid_out(call *c, int64_t *n, int64_t *plain, int64_t *blocked) {
  const int64_t *given = elements(c, INT64, 3);
  if (c->error) return 0;
  for (int i = 0; i < 3; i++) n[i] = given[i];
  if (n[0] < 0 || n[1] < 0 || n[2] < 0) refuse(c, SHAPE);
  else if (n[0] > MOST || n[1] > MOST || n[2] > MOST || times(times(n[0] + LANES, n[1]), n[2]) > MOST) refuse(c, LARGE);
  if (c->error) return 0;
  *plain = n[0] * n[1] * n[2];
  *blocked = (n[0] + LANES - 1) / LANES * n[1] * n[2] * LANES;
  return 1;
}

/* Rows of `channels` numbers, one a datum, to [blocks][channels][LANES], or back: some channels at a time, since rows whose
 * distance is a power of two would push each other out of the first cache. */
static void lanes_of_rows(int64_t batch, int64_t channels, float *rows, float *lanes, int back) {
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < (batch + LANES - 1) / LANES; b++)
    for (int64_t c0 = 0; c0 < channels; c0 += LANES) {
      const int64_t width = channels - c0 < LANES ? channels - c0 : LANES;
      float *at = lanes + (b * channels + c0) * LANES;
      for (int64_t l = 0; l < LANES; l++) {
        const int64_t datum = b * LANES + l;
        float *row = datum < batch ? rows + datum * channels + c0 : NULL;
        if (back) for (int64_t c = 0; row && c < width; c++) row[c] = at[c * LANES + l];
        else for (int64_t c = 0; c < width; c++) at[c * LANES + l] = row ? row[c] : 0.0f;
      }
    }
}

/* (batch, channels, positions) to [blocks][positions][channels][LANES] and back; lanes beyond the batch are zero. */
int64_t leanbayes_block(const argument *list, int64_t length) {
  call call = opened(list, length);
  int64_t n[3], plain, blocked;
  if (!laid_out(&call, n, &plain, &blocked)) return call.error;
  const float *x = floats(&call, plain);
  float *y = floats(&call, blocked);
  if (!complete(&call)) return call.error;
  if (n[2] == 1) { lanes_of_rows(n[0], n[1], (float *)x, y, 0); return done(&call); }
  const int64_t batch = n[0], channels = n[1], positions = n[2], blocks = (batch + LANES - 1) / LANES;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < blocks; b++)
    for (int64_t c = 0; c < channels; c++)
      for (int64_t s0 = 0; s0 < positions; s0 += LANES) {
        float tile[LANES][LANES];
        const int64_t width = positions - s0 < LANES ? positions - s0 : LANES;
        for (int64_t l = 0; l < LANES; l++) {
          const int64_t datum = b * LANES + l;
          for (int64_t s = 0; s < width; s++)
            tile[s][l] = datum < batch ? x[(datum * channels + c) * positions + s0 + s] : 0.0f;
        }
        for (int64_t s = 0; s < width; s++)
          memcpy(y + ((b * positions + s0 + s) * channels + c) * LANES, tile[s], sizeof(tile[s]));
      }
  return done(&call);
}

int64_t leanbayes_unblock(const argument *list, int64_t length) {
  call call = opened(list, length);
  int64_t n[3], plain, blocked;
  if (!laid_out(&call, n, &plain, &blocked)) return call.error;
  const float *y = floats(&call, blocked);
  float *x = floats(&call, plain);
  if (!complete(&call)) return call.error;
  if (n[2] == 1) { lanes_of_rows(n[0], n[1], x, (float *)y, 1); return done(&call); }
  const int64_t batch = n[0], channels = n[1], positions = n[2], blocks = (batch + LANES - 1) / LANES;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < blocks; b++)
    for (int64_t c = 0; c < channels; c++)
      for (int64_t s0 = 0; s0 < positions; s0 += LANES) {
        float tile[LANES][LANES];
        const int64_t width = positions - s0 < LANES ? positions - s0 : LANES;
        for (int64_t s = 0; s < width; s++) {
          const float *run = y + ((b * positions + s0 + s) * channels + c) * LANES;
          for (int64_t l = 0; l < LANES; l++) tile[l][s] = run[l];
        }
        for (int64_t l = 0; l < LANES && b * LANES + l < batch; l++)
          memcpy(x + ((b * LANES + l) * channels + c) * positions + s0, tile[l], sizeof(float) * (size_t)width);
      }
  return done(&call);
}
