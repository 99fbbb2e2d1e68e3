// Functions that the cores of emitted programs call, in AIE's vector API (aie_api).
//
// Each has the values of the kernel entry of the same name (crates/npu/src/kernel): bf16 operands, sums in f32, one
// rounding to the nearest bf16, ties to even. An operand is a pointer to words and a byte offset. Matrices have
// the layouts of the entries: a [m/4][k/8][4][8], b [n/8][k/8][8][8], c [m/4][n/8][4][8].
//
// Blocks are those of AIE2P. No device has run them. On a host they are compiled with the stand-in for the API in
// host/, and compared with the entries: cargo test -p girih-npu --test it kernels_in_c. Entries that are missing
// here have no function yet.

#include <aie_api/aie.hpp>
#include <cstdint>

namespace {

template <typename T> T *operand(int32_t *words, int32_t offset) {
  return reinterpret_cast<T *>(reinterpret_cast<char *>(words) + offset);
}

// Cores round down by default.
void round_to_even() { aie::set_rounding(aie::rounding_mode::conv_even); }

// Rows of a block of a and c, and columns of a block.
constexpr int kRows = 4, kSide = 8;
// Lanes that sum a row of a matrix-vector product.
constexpr int kLanes = 64;
// Lanes of functions on elements.
constexpr int kWidth = 16;

// c += a · bᵀ. Rows of b are columns of the result, so that each block is transposed.
void gemm(const bfloat16 *a, const bfloat16 *b, float *c, int32_t m, int32_t n, int32_t k) {
  using Block = aie::mmul<kRows, kSide, kSide, bfloat16, bfloat16, accauto>;
  const int steps = k / kSide, columns = n / kSide;
  for (int row = 0; row < m / kRows; ++row) {
    for (int column = 0; column < columns; ++column) {
      float *out = c + (row * columns + column) * Block::size_C;
      const bfloat16 *left = a + row * steps * Block::size_A;
      const bfloat16 *right = b + column * steps * Block::size_B;
      Block sums(aie::load_v<Block::size_C>(out));
      for (int step = 0; step < steps; ++step) {
        const auto block = aie::load_v<Block::size_B>(right + step * Block::size_B);
        sums.mac(aie::load_v<Block::size_A>(left + step * Block::size_A), aie::transpose(block, kSide, kSide));
      }
      aie::store_v(out, sums.template to_vector<float>());
    }
  }
}

// The values of a row from `at` on, with zeros after its end.
aie::vector<bfloat16, kLanes> lanes(const bfloat16 *row, int32_t at, int32_t k) {
  if (k - at >= kLanes)
    return aie::load_unaligned_v<kLanes>(row + at);
  auto values = aie::zeros<bfloat16, kLanes>();
  for (int lane = 0; at + lane < k; ++lane)
    values.set(row[at + lane], lane);
  return values;
}

// The product of a row with a vector: each lane sums every 64th column, then halves are added.
float dot(const bfloat16 *row, const bfloat16 *x, int32_t k) {
  auto sums = aie::zeros<accfloat, kLanes>();
  for (int32_t at = 0; at < k; at += kLanes)
    sums = aie::mac(sums, lanes(row, at, k), lanes(x, at, k));
  return aie::reduce_add(sums.template to_vector<float>());
}

// Rotates kWidth pairs (first, second) by the angles of these cosines and sines. Products of bf16 are exact in f32,
// so that each result rounds once before the store.
void rotate(const bfloat16 *first, const bfloat16 *second, const bfloat16 *cosines, const bfloat16 *sines,
            bfloat16 *out_first, bfloat16 *out_second) {
  const auto x = aie::load_unaligned_v<kWidth>(first), y = aie::load_unaligned_v<kWidth>(second);
  const auto c = aie::load_unaligned_v<kWidth>(cosines), s = aie::load_unaligned_v<kWidth>(sines);
  const auto across = aie::msc(aie::mul(x, c), y, s), along = aie::mac(aie::mul(y, c), x, s);
  aie::store_unaligned_v(out_first, across.template to_vector<bfloat16>());
  aie::store_unaligned_v(out_second, along.template to_vector<bfloat16>());
}

// Rotates one pair.
void rotate_pair(bfloat16 first, bfloat16 second, bfloat16 cosine, bfloat16 sine, bfloat16 *out_first,
                 bfloat16 *out_second) {
  const float x = static_cast<float>(first), y = static_cast<float>(second);
  const float c = static_cast<float>(cosine), s = static_cast<float>(sine);
  *out_first = static_cast<bfloat16>(x * c - y * s);
  *out_second = static_cast<bfloat16>(y * c + x * s);
}

// The operands of a rotation: heads, the table, and the rotated heads.
struct RopeOperands {
  int32_t *x, x_at, *table, table_at, *y, y_at;
};

// Calls `turn` with each head, the cosines and the sines of its row, and the place of the result.
template <typename Turn>
inline void each_head(const RopeOperands &of, int32_t rows, int32_t heads, int32_t size, Turn turn) {
  round_to_even();
  for (int32_t row = 0; row < rows; ++row) {
    const bfloat16 *cosines = operand<bfloat16>(of.table, of.table_at) + row * size;
    for (int32_t head = 0; head < heads; ++head) {
      const int32_t first = (row * heads + head) * size;
      turn(operand<bfloat16>(of.x, of.x_at) + first, cosines, cosines + size / 2,
           operand<bfloat16>(of.y, of.y_at) + first);
    }
  }
}

} // namespace

extern "C" {

void gemm_bf16(int32_t *a, int32_t a_at, int32_t *b, int32_t b_at, int32_t *c, int32_t c_at, int32_t m, int32_t n,
               int32_t k) {
  round_to_even();
  gemm(operand<bfloat16>(a, a_at), operand<bfloat16>(b, b_at), operand<float>(c, c_at), m, n, k);
}

void gemm_bf16_direct(int32_t *a, int32_t a_at, int32_t *b, int32_t b_at, int32_t *c, int32_t c_at, int32_t m,
                      int32_t n, int32_t k) {
  gemm_bf16(a, a_at, b, b_at, c, c_at, m, n, k);
}

void gemm_bf16_tuned(int32_t *a, int32_t a_at, int32_t *b, int32_t b_at, int32_t *c, int32_t c_at, int32_t m,
                     int32_t n, int32_t k) {
  gemm_bf16(a, a_at, b, b_at, c, c_at, m, n, k);
}

// y[i] = Σ w[i, j] · x[j]
void gemv_bf16(int32_t *w, int32_t w_at, int32_t *x, int32_t x_at, int32_t *y, int32_t y_at, int32_t rows,
               int32_t k) {
  round_to_even();
  const bfloat16 *matrix = operand<bfloat16>(w, w_at);
  bfloat16 *out = operand<bfloat16>(y, y_at);
  for (int32_t row = 0; row < rows; ++row)
    out[row] = static_cast<bfloat16>(dot(matrix + row * k, operand<bfloat16>(x, x_at), k));
}

// sums[i] += Σ w[i, j] · x[j]
void gemv_bf16_part(int32_t *w, int32_t w_at, int32_t *x, int32_t x_at, int32_t *sums, int32_t sums_at, int32_t rows,
                    int32_t k) {
  const bfloat16 *matrix = operand<bfloat16>(w, w_at);
  float *out = operand<float>(sums, sums_at);
  for (int32_t row = 0; row < rows; ++row)
    out[row] += dot(matrix + row * k, operand<bfloat16>(x, x_at), k);
}

// y = a + b
void add(int32_t *a, int32_t a_at, int32_t *b, int32_t b_at, int32_t *y, int32_t y_at, int32_t n) {
  round_to_even();
  const bfloat16 *left = operand<bfloat16>(a, a_at), *right = operand<bfloat16>(b, b_at);
  bfloat16 *out = operand<bfloat16>(y, y_at);
  int32_t at = 0;
  for (; at + kWidth <= n; at += kWidth) {
    aie::accum<accfloat, kWidth> sums(aie::load_unaligned_v<kWidth>(left + at));
    sums = aie::add(sums, aie::load_unaligned_v<kWidth>(right + at));
    aie::store_unaligned_v(out + at, sums.template to_vector<bfloat16>());
  }
  for (; at < n; ++at)
    out[at] = static_cast<bfloat16>(static_cast<float>(left[at]) + static_cast<float>(right[at]));
}

void zero_f32(int32_t *y, int32_t y_at, int32_t n) {
  float *out = operand<float>(y, y_at);
  int32_t at = 0;
  for (; at + kWidth <= n; at += kWidth)
    aie::store_unaligned_v(out + at, aie::zeros<float, kWidth>());
  for (; at < n; ++at)
    out[at] = 0;
}

void copy(int32_t *x, int32_t x_at, int32_t *y, int32_t y_at, int32_t n) {
  const bfloat16 *in = operand<bfloat16>(x, x_at);
  bfloat16 *out = operand<bfloat16>(y, y_at);
  for (int32_t at = 0; at < n; ++at)
    out[at] = in[at];
}

// Rotates component i of each head with i + size/2. A row of the table has the cosines of the pairs, then their sines.
void rope_halves(int32_t *x, int32_t x_at, int32_t *table, int32_t table_at, int32_t *y, int32_t y_at, int32_t rows,
                 int32_t heads, int32_t size) {
  const int32_t half = size / 2;
  const RopeOperands operands = {x, x_at, table, table_at, y, y_at};
  each_head(operands, rows, heads, size,
            [half](const bfloat16 *in, const bfloat16 *cosines, const bfloat16 *sines, bfloat16 *out) {
              int32_t at = 0;
              for (; at + kWidth <= half; at += kWidth)
                rotate(in + at, in + half + at, cosines + at, sines + at, out + at, out + half + at);
              for (; at < half; ++at)
                rotate_pair(in[at], in[half + at], cosines[at], sines[at], out + at, out + half + at);
            });
}

// Rotates component 2i of each head with 2i + 1, with the same table.
void rope_neighbours(int32_t *x, int32_t x_at, int32_t *table, int32_t table_at, int32_t *y, int32_t y_at,
                     int32_t rows, int32_t heads, int32_t size) {
  const int32_t half = size / 2;
  const RopeOperands operands = {x, x_at, table, table_at, y, y_at};
  each_head(operands, rows, heads, size,
            [half](const bfloat16 *in, const bfloat16 *cosines, const bfloat16 *sines, bfloat16 *out) {
              for (int32_t at = 0; at < half; ++at)
                rotate_pair(in[2 * at], in[2 * at + 1], cosines[at], sines[at], out + 2 * at, out + 2 * at + 1);
            });
}

// Rounds f32 to bf16.
void store_bf16(int32_t *x, int32_t x_at, int32_t *y, int32_t y_at, int32_t n) {
  round_to_even();
  const float *in = operand<float>(x, x_at);
  bfloat16 *out = operand<bfloat16>(y, y_at);
  int32_t at = 0;
  for (; at + kWidth <= n; at += kWidth) {
    aie::accum<accfloat, kWidth> values(aie::load_unaligned_v<kWidth>(in + at));
    aie::store_unaligned_v(out + at, values.template to_vector<bfloat16>());
  }
  for (; at < n; ++at)
    out[at] = static_cast<bfloat16>(in[at]);
}

} // extern "C"
