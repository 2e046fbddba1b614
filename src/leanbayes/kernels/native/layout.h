/* Activations into blocks of the batch and back. */

/* (batch, channels, positions) to [blocks][positions][channels][LANES] and back; lanes beyond the batch are zero. */
void leanbayes_block(const float *x, float *y, int64_t batch, int64_t channels, int64_t positions) {
  const int64_t blocks = (batch + LANES - 1) / LANES;
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
}

void leanbayes_unblock(const float *y, float *x, int64_t batch, int64_t channels, int64_t positions) {
  const int64_t blocks = (batch + LANES - 1) / LANES;
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
          memcpy(x + ((b * LANES + l) * channels + c) * positions + s0, tile[l], sizeof(float) * width);
      }
}
