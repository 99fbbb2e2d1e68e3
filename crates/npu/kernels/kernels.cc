// Functions that the cores of emitted programs call, in AIE's vector API (aie_api).
//
// Each has the values of the kernel entry of the same name (crates/npu/src/kernel): bf16 operands, sums in f32, one
// rounding to the nearest bf16, ties to even. An operand is a pointer to words and a byte offset. Matrices have
// the layouts of the entries: a [m/4][k/8][4][8], b [n/8][k/8][8][8], c [m/4][n/8][4][8].
//
// Blocks are those of AIE2P. No device has run them. On a host they are compiled with the stand-in for the API in
// host/, and compared with the entries: cargo test -p girih-npu --test it kernels_in_c. There, functions have the bits
// of their entries, except for those with an exponential or a hyperbolic tangent, which the API has in bf16 only.
// Entries that are missing here have no function yet.

#include <aie_api/aie.hpp>
#include <cstdint>
#include <limits>

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
template <int N, typename T> aie::vector<T, N> lanes(const T *row, int32_t at, int32_t end) {
  if (end - at >= N)
    return aie::load_unaligned_v<N>(row + at);
  auto values = aie::zeros<T, N>();
  for (int lane = 0; at + lane < end; ++lane)
    values.set(row[at + lane], lane);
  return values;
}

// Stores the values of a row from `at` on, up to its end.
template <int N, typename T> void store_lanes(T *row, int32_t at, int32_t end, const aie::vector<T, N> &values) {
  if (end - at >= N) {
    aie::store_unaligned_v(row + at, values);
    return;
  }
  for (int lane = 0; at + lane < end; ++lane)
    row[at + lane] = values.get(lane);
}

// bf16 as f32.
template <int N> aie::vector<float, N> widened(const aie::vector<bfloat16, N> &values) {
  return aie::accum<accfloat, N>(values).template to_vector<float>();
}

// The product of a row with a vector: each lane sums every 64th column, then halves are added.
float dot(const bfloat16 *row, const bfloat16 *x, int32_t k) {
  auto sums = aie::zeros<accfloat, kLanes>();
  for (int32_t at = 0; at < k; at += kLanes)
    sums = aie::mac(sums, lanes<kLanes>(row, at, k), lanes<kLanes>(x, at, k));
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

// A tile of Q4NX: 8 groups of 32 scales, as many minimums, then the integers of rows 0..16 and of rows 16..32, column by
// column, a byte for two rows. Tiles without minimums have signed integers.
constexpr int kTileRows = 32, kTileColumns = 256, kTileBytes = 5120, kGroup = 32, kHalf = 16;

bool is_signed(const char *tile) {
  const auto minimums = reinterpret_cast<const int32_t *>(tile + kTileBytes / 10);
  auto any = aie::zeros<int32_t, kWidth>();
  for (int at = 0; at < kTileColumns / 2; at += kWidth)
    any = aie::bit_or(any, aie::load_v<kWidth>(minimums + at));
  return aie::neq(any, int32_t(0)).empty();
}

// The weights of two columns of a half, rounded to bf16.
aie::vector<bfloat16, 2 * kHalf> two_columns(const char *tile, bool has_signs, int32_t half, int32_t column) {
  const char *bytes = tile + 1024 + half * kTileColumns * kHalf / 2 + column * kHalf / 2;
  const auto integers =
      has_signs ? aie::to_float<bfloat16>(aie::unpack(aie::load_v<2 * kHalf>(reinterpret_cast<const int4 *>(bytes))))
                : aie::to_float<bfloat16>(aie::unpack(aie::load_v<2 * kHalf>(reinterpret_cast<const uint4 *>(bytes))));
  const bfloat16 *scales = reinterpret_cast<const bfloat16 *>(tile) + column / kGroup * kTileRows + half * kHalf;
  const auto scale = aie::load_v<kHalf>(scales), minimum = aie::load_v<kHalf>(scales + kTileColumns);
  const auto scaled = aie::mul(integers, aie::concat(scale, scale));
  return aie::add(scaled, aie::concat(minimum, minimum)).template to_vector<bfloat16>();
}

// Eight rows of a tile, from `row` on, by eight columns, row by row.
aie::vector<bfloat16, kSide * kSide> tile_block(const char *tile, bool has_signs, int32_t row, int32_t column) {
  aie::vector<bfloat16, kSide * kSide> block;
  for (int at = 0; at < kSide; at += 2) {
    const auto columns = two_columns(tile, has_signs, row / kHalf, column + at);
    block.insert(at, columns.template extract<kSide>(row % kHalf / kSide));
    block.insert(at + 1, columns.template extract<kSide>(2 + row % kHalf / kSide));
  }
  return aie::transpose(block, kSide, kSide);
}

// e to the power of each value, in bf16: 2^-126 for smaller powers and for minus infinity.
template <int N> aie::vector<bfloat16, N> exponentials(const aie::vector<float, N> &x) {
  const auto scaled = aie::mul(x, aie::broadcast<float, N>(1.44269504f)).template to_vector<float>();
  return aie::exp2<bfloat16>(aie::max(scaled, aie::broadcast<float, N>(-126.0f)));
}

float exponential(float x) {
  return static_cast<float>(exponentials(aie::broadcast<float, kWidth>(x)).get(0));
}

// Keys of attention whose weights are computed together, and the values of a state ahead of the sums.
constexpr int kKeys = 32, kHead = 2;

// What rows see, and how their scores are scaled: row r is at `position` + r / `group`, key j at `first` + j. A row sees
// the keys up to its own, or the last `window` of them, and all of its span: `spans` are kSpans first positions, each
// followed by the position after the last, or null.
constexpr int kSpans = 7;

struct Sight {
  int32_t position, first, group, window;
  const int32_t *spans;
  float scale;

  Sight(const int32_t *start, int32_t query, int32_t key, int32_t group, int32_t causal, int32_t window, float scale)
      : position(start[0] + query), first(start[1] + key), group(group), window(window),
        spans(causal ? nullptr : start + 2), scale(scale) {}

  bool sees(int32_t row, int32_t key) const {
    const int32_t own = position + row / group, other = first + key;
    int32_t from = window == 0 ? 0 : own + 1 - window, end = own + 1;
    for (int span = 0; spans && span < kSpans; ++span) {
      const int32_t *at = spans + 2 * span;
      if (at[0] <= own && own < at[1]) {
        from = at[0] < from ? at[0] : from;
        end = at[1];
        break;
      }
    }
    return from <= other && other < end;
  }
};

constexpr float kUnseen = -std::numeric_limits<float>::infinity();

// Queries of one row after the other, and keys or values likewise.
struct Rows {
  const bfloat16 *at;
  int32_t rows, size;
  // Eight values of N rows. Behind the last row they are those of the last row.
  template <int N> aie::vector<bfloat16, N * kSide> block(int32_t row, int32_t column) const {
    aie::vector<bfloat16, N * kSide> out;
    for (int r = 0; r < N; ++r) {
      const int32_t clamped = row + r < rows ? row + r : rows - 1;
      out.insert(r, lanes<kSide>(at + clamped * size, column, size));
    }
    return out;
  }
};

using AttentionBlock = aie::mmul<kRows, kSide, kSide, bfloat16, bfloat16, accauto>;

// The scores of four queries from `row` on, with up to kKeys keys from `key` on.
void score(const Rows &q, const Rows &k, const Sight &sight, int32_t row, int32_t key, float (*scores)[kKeys]) {
  for (int32_t at = 0; at < kKeys; at += kSide) {
    AttentionBlock sums(aie::zeros<float, AttentionBlock::size_C>());
    for (int32_t column = 0; column < q.size; column += kSide)
      sums.mac(q.block<kRows>(row, column), aie::transpose(k.block<kSide>(key + at, column), kSide, kSide));
    const auto scale = aie::broadcast<float, AttentionBlock::size_C>(sight.scale);
    const auto scaled = aie::mul(sums.template to_vector<float>(), scale).template to_vector<float>();
    for (int r = 0; r < kRows; ++r)
      aie::store_v(scores[r] + at, scaled.template extract<kSide>(r));
  }
  for (int r = 0; r < kRows; ++r)
    for (int32_t j = 0; j < kKeys; ++j)
      if (key + j >= k.rows || !sight.sees(row + r, key + j))
        scores[r][j] = kUnseen;
}

// Updates the largest score and the sum of the weights of a row, and sets the weights of its keys. Returns the factor of the
// values so far.
float weigh(const float *scores, float *head, bfloat16 *weights) {
  const auto all = aie::load_v<kKeys>(scores);
  const float largest = aie::reduce_max(aie::max(all, aie::broadcast<float, kKeys>(head[0])));
  if (largest == kUnseen) {
    aie::store_v(weights, aie::zeros<bfloat16, kKeys>());
    return 1;
  }
  const float fade = exponential(head[0] - largest);
  const auto found = exponentials(aie::sub(all, aie::broadcast<float, kKeys>(largest)));
  aie::store_v(weights, found);
  head[0] = largest;
  head[1] = head[1] * fade + aie::reduce_add(widened(found));
  return fade;
}

// Adds the values of up to kKeys keys from `key` on to those of four rows of a state, times `fades`.
void accumulate(const float *fades, bfloat16 (*weights)[kKeys], const Rows &v, int32_t key, float *state, int32_t row,
                int32_t rows) {
  aie::vector<float, AttentionBlock::size_C> factors;
  for (int r = 0; r < kRows; ++r)
    factors.insert(r, aie::broadcast<float, kSide>(fades[r]));
  const int32_t stride = v.size + kHead;
  for (int32_t column = 0; column < v.size; column += kSide) {
    aie::vector<float, AttentionBlock::size_C> before;
    for (int r = 0; r < kRows; ++r)
      before.insert(r, lanes<kSide>(state + (row + r < rows ? row + r : rows - 1) * stride + kHead, column, v.size));
    AttentionBlock sums(aie::mul(before, factors).template to_vector<float>());
    for (int32_t at = 0; at < kKeys && key + at < v.rows; at += kSide) {
      aie::vector<bfloat16, AttentionBlock::size_A> left;
      for (int r = 0; r < kRows; ++r)
        left.insert(r, aie::load_v<kSide>(weights[r] + at));
      sums.mac(left, v.block<kSide>(key + at, column));
    }
    const auto after = sums.template to_vector<float>();
    for (int r = 0; r < kRows && row + r < rows; ++r)
      store_lanes<kSide>(state + (row + r) * stride + kHead, column, v.size, after.template extract<kSide>(r));
  }
}

// The sum of the squares of a row, in kWidth lanes, of what `part` gives from a column on.
template <typename Part> float squares(int32_t n, Part part) {
  auto sums = aie::zeros<accfloat, kWidth>();
  for (int32_t at = 0; at < n; at += kWidth) {
    const auto values = part(at);
    sums = aie::mac(sums, values, values);
  }
  return aie::reduce_add(sums.template to_vector<float>());
}

// Stores what `of` gives for each stretch of a bf16 vector.
template <typename Of> void elementwise(bfloat16 *y, int32_t n, Of of) {
  round_to_even();
  for (int32_t at = 0; at < n; at += kWidth)
    store_lanes<kWidth>(y, at, n, of(at));
}

using Floats = aie::vector<float, kWidth>;

Floats product(const Floats &a, const Floats &b) { return aie::mul(a, b).template to_vector<float>(); }

Floats times(const Floats &a, float factor) { return product(a, aie::broadcast<float, kWidth>(factor)); }

// 1 + tanh(x)
Floats tanh_above(const Floats &x) {
  return aie::add(widened(aie::tanh<bfloat16>(x)), aie::broadcast<float, kWidth>(1.0f));
}

// x / (1 + e^-x)
Floats silu_of(const Floats &x) {
  const auto half = times(x, 0.5f);
  return product(half, tanh_above(half));
}

// x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))
Floats gelu_of(const Floats &x) {
  const auto cube = product(product(times(x, 0.044715f), x), x);
  return product(times(x, 0.5f), tanh_above(times(aie::add(x, cube), 0.797884561f)));
}

aie::vector<bfloat16, kWidth> rounded(const Floats &x) {
  return aie::accum<accfloat, kWidth>(x).template to_vector<bfloat16>();
}

// y = f(a) · b
template <typename F> void gate(const bfloat16 *a, const bfloat16 *b, bfloat16 *y, int32_t n, F f) {
  elementwise(y, n, [=](int32_t at) {
    return rounded(product(f(widened(lanes<kWidth>(a, at, n))), widened(lanes<kWidth>(b, at, n))));
  });
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

// sums[i] += Σ ŵ[i, j] · x[j], the rows of a tile side by side: each adds its columns in order.
void gemv_q4nx(int32_t *w, int32_t w_at, int32_t *x, int32_t x_at, int32_t *sums, int32_t sums_at, int32_t rows,
               int32_t k) {
  round_to_even();
  const char *tile = operand<char>(w, w_at);
  for (int32_t row = 0; row < rows; row += kTileRows) {
    float *out = operand<float>(sums, sums_at) + row;
    for (int32_t column = 0; column < k; column += kTileColumns, tile += kTileBytes) {
      const bfloat16 *in = operand<bfloat16>(x, x_at) + column;
      const bool has_signs = is_signed(tile);
      for (int32_t half = 0; half < 2; ++half) {
        aie::accum<accfloat, kHalf> all(aie::load_v<kHalf>(out + half * kHalf));
        for (int32_t at = 0; at < kTileColumns; at += 2) {
          const auto columns = two_columns(tile, has_signs, half, at);
          all = aie::mac(all, columns.template extract<kHalf>(0), aie::broadcast<bfloat16, kHalf>(in[at]));
          all = aie::mac(all, columns.template extract<kHalf>(1), aie::broadcast<bfloat16, kHalf>(in[at + 1]));
        }
        aie::store_v(out + half * kHalf, all.template to_vector<float>());
      }
    }
  }
}

// Unpacks groups of a tile: [groups][32][32].
void dequant_q4nx(int32_t *w, int32_t w_at, int32_t *y, int32_t y_at, int32_t first, int32_t groups) {
  round_to_even();
  const char *tile = operand<char>(w, w_at);
  const bool has_signs = is_signed(tile);
  bfloat16 *out = operand<bfloat16>(y, y_at);
  for (int32_t group = 0; group < groups; ++group)
    for (int32_t row = 0; row < kTileRows; row += kSide)
      for (int32_t column = 0; column < kGroup; column += kSide) {
        const auto block = tile_block(tile, has_signs, row, (first + group) * kGroup + column);
        bfloat16 *to = out + (group * kTileRows + row) * kGroup + column;
        for (int r = 0; r < kSide; ++r)
          aie::store_v(to + r * kGroup, block.template extract<kSide>(r));
      }
}

// Unpacks groups of a tile to the blocks of b.
void unpack_q4nx(int32_t *w, int32_t w_at, int32_t *y, int32_t y_at, int32_t first, int32_t groups) {
  round_to_even();
  const char *tile = operand<char>(w, w_at);
  const bool has_signs = is_signed(tile);
  bfloat16 *out = operand<bfloat16>(y, y_at);
  for (int32_t row = 0; row < kTileRows; row += kSide)
    for (int32_t column = first * kGroup; column < (first + groups) * kGroup; column += kSide, out += kSide * kSide)
      aie::store_v(out, tile_block(tile, has_signs, row, column));
}

// y = x / √(mean(x²) + epsilon) · w
void rms_norm(int32_t *x, int32_t x_at, int32_t *w, int32_t w_at, int32_t *y, int32_t y_at, int32_t rows, int32_t n,
              int32_t width, float epsilon) {
  const bfloat16 *weights = operand<bfloat16>(w, w_at);
  for (int32_t row = 0; row < rows; ++row) {
    const bfloat16 *in = operand<bfloat16>(x, x_at) + row * n;
    const float sum = squares(n, [=](int32_t at) { return lanes<kWidth>(in, at, n); });
    const float scale = aie::invsqrt(sum / static_cast<float>(width) + epsilon);
    elementwise(operand<bfloat16>(y, y_at) + row * n, n, [=](int32_t at) {
      return rounded(product(times(widened(lanes<kWidth>(in, at, n)), scale), widened(lanes<kWidth>(weights, at, n))));
    });
  }
}

// y = (x − mean(x)) / √(var(x) + epsilon) · w + b. Values after the width are zeros and stay so.
void layer_norm(int32_t *x, int32_t x_at, int32_t *w, int32_t w_at, int32_t *b, int32_t b_at, int32_t *y, int32_t y_at,
                int32_t rows, int32_t n, int32_t width, float epsilon) {
  const bfloat16 *weights = operand<bfloat16>(w, w_at), *biases = operand<bfloat16>(b, b_at);
  for (int32_t row = 0; row < rows; ++row) {
    const bfloat16 *in = operand<bfloat16>(x, x_at) + row * n;
    auto sums = aie::zeros<accfloat, kWidth>();
    for (int32_t at = 0; at < width; at += kWidth)
      sums = aie::add(sums, lanes<kWidth>(in, at, width));
    const float center = aie::reduce_add(sums.template to_vector<float>()) / static_cast<float>(width);
    const auto centered = [=](int32_t at) {
      auto values = aie::sub(widened(lanes<kWidth>(in, at, width)), aie::broadcast<float, kWidth>(center));
      for (int lane = width - at; lane < kWidth; ++lane)
        values.set(0, lane);
      return values;
    };
    const float scale = aie::invsqrt(squares(width, centered) / static_cast<float>(width) + epsilon);
    bfloat16 *out = operand<bfloat16>(y, y_at) + row * n;
    elementwise(out, width, [=](int32_t at) {
      const auto scaled = product(times(centered(at), scale), widened(lanes<kWidth>(weights, at, width)));
      return rounded(aie::add(scaled, widened(lanes<kWidth>(biases, at, width))));
    });
    for (int32_t at = width; at < n; ++at)
      out[at] = in[at];
  }
}

void silu_mul(int32_t *a, int32_t a_at, int32_t *b, int32_t b_at, int32_t *y, int32_t y_at, int32_t n) {
  gate(operand<bfloat16>(a, a_at), operand<bfloat16>(b, b_at), operand<bfloat16>(y, y_at), n, silu_of);
}

void gelu_mul(int32_t *a, int32_t a_at, int32_t *b, int32_t b_at, int32_t *y, int32_t y_at, int32_t n) {
  gate(operand<bfloat16>(a, a_at), operand<bfloat16>(b, b_at), operand<bfloat16>(y, y_at), n, gelu_of);
}

void gelu(int32_t *x, int32_t x_at, int32_t *y, int32_t y_at, int32_t n) {
  const bfloat16 *in = operand<bfloat16>(x, x_at);
  elementwise(operand<bfloat16>(y, y_at), n,
              [=](int32_t at) { return rounded(gelu_of(widened(lanes<kWidth>(in, at, n)))); });
}

// y = x · factor
void scale(int32_t *x, int32_t x_at, int32_t *y, int32_t y_at, int32_t n, float factor) {
  const bfloat16 *in = operand<bfloat16>(x, x_at);
  elementwise(operand<bfloat16>(y, y_at), n,
              [=](int32_t at) { return rounded(times(widened(lanes<kWidth>(in, at, n)), factor)); });
}

// A row of a state has its largest score, the sum of its weights, and its weighted values, in f32.
void attend_clear(int32_t *state, int32_t state_at, int32_t rows, int32_t values) {
  float *row = operand<float>(state, state_at);
  for (int32_t left = rows; left > 0; --left, row += values + kHead) {
    row[0] = kUnseen;
    for (int32_t at = 1; at < values + kHead; ++at)
      row[at] = 0;
  }
}

// More than kKeys keys are several updates, one after the other.
void attend(int32_t *q, int32_t q_at, int32_t *k, int32_t k_at, int32_t *v, int32_t v_at, int32_t *start,
            int32_t start_at, int32_t *state, int32_t state_at, int32_t rows, int32_t size, int32_t values, int32_t keys,
            int32_t group, int32_t query, int32_t key, int32_t causal, int32_t window, float factor) {
  round_to_even();
  const Sight sight(operand<int32_t>(start, start_at), query, key, group, causal, window, factor);
  const Rows queries = {operand<bfloat16>(q, q_at), rows, size}, left = {operand<bfloat16>(k, k_at), keys, size},
             right = {operand<bfloat16>(v, v_at), keys, values};
  float *states = operand<float>(state, state_at);
  for (int32_t row = 0; row < rows; row += kRows) {
    for (int32_t first = 0; first < keys; first += kKeys) {
      alignas(64) float scores[kRows][kKeys];
      alignas(64) bfloat16 weights[kRows][kKeys];
      float fades[kRows];
      score(queries, left, sight, row, first, scores);
      for (int r = 0; r < kRows; ++r) {
        float unused[kHead] = {kUnseen, 0};
        float *head = row + r < rows ? states + (row + r) * (values + kHead) : unused;
        fades[r] = weigh(scores[r], head, weights[r]);
      }
      accumulate(fades, weights, right, first, states, row, rows);
    }
  }
}

// Rows of weights: the largest score, the sum of the weights, the factor of the values so far, then the weights.
void attend_scores(int32_t *q, int32_t q_at, int32_t *k, int32_t k_at, int32_t *start, int32_t start_at, int32_t *weights,
                   int32_t weights_at, int32_t rows, int32_t size, int32_t keys, int32_t group, int32_t query,
                   int32_t key, int32_t causal, int32_t window, float factor) {
  round_to_even();
  const Sight sight(operand<int32_t>(start, start_at), query, key, group, causal, window, factor);
  const Rows queries = {operand<bfloat16>(q, q_at), rows, size}, left = {operand<bfloat16>(k, k_at), keys, size};
  const int32_t stride = keys + kHead + 1;
  for (int32_t row = 0; row < rows; row += kRows) {
    float *block = operand<float>(weights, weights_at) + row * stride;
    const int count = rows - row < kRows ? rows - row : kRows;
    for (int32_t first = 0; first < keys; first += kKeys) {
      alignas(64) float scores[kRows][kKeys];
      score(queries, left, sight, row, first, scores);
      for (int r = 0; r < count; ++r)
        store_lanes<kKeys>(block + r * stride + kHead + 1, first, keys, aie::load_v<kKeys>(scores[r]));
    }
    for (int r = 0; r < count; ++r) {
      float *head = block + r * stride, *of_keys = head + kHead + 1;
      float largest = head[0];
      for (int32_t at = 0; at < keys; ++at)
        largest = of_keys[at] > largest ? of_keys[at] : largest;
      const bool has_keys = largest != kUnseen;
      const float fade = has_keys ? exponential(head[0] - largest) : 1;
      float sum = head[1] * fade;
      for (int32_t at = 0; at < keys; at += kWidth) {
        auto found = aie::zeros<bfloat16, kWidth>();
        if (has_keys)
          found = exponentials(aie::sub(lanes<kWidth>(of_keys, at, keys), aie::broadcast<float, kWidth>(largest)));
        for (int lane = keys - at; lane < kWidth; ++lane)
          found.set(static_cast<bfloat16>(0.0f), lane);
        store_lanes<kWidth>(of_keys, at, keys, widened(found));
        sum += aie::reduce_add(widened(found));
      }
      head[0] = largest;
      head[1] = sum;
      head[2] = fade;
    }
  }
}

void attend_values(int32_t *v, int32_t v_at, int32_t *weights, int32_t weights_at, int32_t *state, int32_t state_at,
                   int32_t rows, int32_t values, int32_t keys) {
  round_to_even();
  const Rows right = {operand<bfloat16>(v, v_at), keys, values};
  const int32_t stride = keys + kHead + 1;
  float *states = operand<float>(state, state_at);
  for (int32_t row = 0; row < rows; row += kRows) {
    for (int32_t first = 0; first < keys; first += kKeys) {
      alignas(64) bfloat16 some[kRows][kKeys];
      float fades[kRows];
      for (int r = 0; r < kRows; ++r) {
        const float *from = operand<float>(weights, weights_at) + (row + r < rows ? row + r : rows - 1) * stride;
        aie::store_v(some[r], aie::accum<accfloat, kKeys>(lanes<kKeys>(from + kHead + 1, first, keys))
                                  .template to_vector<bfloat16>());
        fades[r] = first == 0 && from[0] != kUnseen ? from[2] : 1;
        if (row + r < rows) {
          states[(row + r) * (values + kHead)] = from[0];
          states[(row + r) * (values + kHead) + 1] = from[1];
        }
      }
      accumulate(fades, some, right, first, states, row, rows);
    }
  }
}

// state = state ⊕ other
void attend_merge(int32_t *other, int32_t other_at, int32_t *state, int32_t state_at, int32_t rows, int32_t values) {
  const int32_t width = values + kHead;
  for (int32_t row = 0; row < rows; ++row) {
    const float *theirs = operand<float>(other, other_at) + row * width;
    float *ours = operand<float>(state, state_at) + row * width;
    const float largest = ours[0] > theirs[0] ? ours[0] : theirs[0];
    if (largest == kUnseen)
      continue;
    const float kept = exponential(ours[0] - largest), added = exponential(theirs[0] - largest);
    for (int32_t at = 1; at < width; at += kWidth) {
      const auto both = aie::add(times(lanes<kWidth>(ours, at, width), kept), times(lanes<kWidth>(theirs, at, width), added));
      store_lanes<kWidth>(ours, at, width, both);
    }
    ours[0] = largest;
  }
}

// y = values / sum; zeros without keys.
void attend_store(int32_t *state, int32_t state_at, int32_t *y, int32_t y_at, int32_t rows, int32_t values) {
  for (int32_t row = 0; row < rows; ++row) {
    const float *in = operand<float>(state, state_at) + row * (values + kHead);
    const float factor = in[1] > 0 ? aie::inv(in[1]) : 0;
    elementwise(operand<bfloat16>(y, y_at) + row * values, values,
                [=](int32_t at) { return rounded(times(lanes<kWidth>(in + kHead, at, values), factor)); });
  }
}

// A beat of the cascade has 16 words; the last one is filled with zeros.
void send(int32_t *x, int32_t x_at, int32_t n) {
  for (int32_t at = 0; at < n; at += kWidth)
    put_mcd(lanes<kWidth>(operand<int32_t>(x, x_at), at, n));
}

void receive(int32_t *y, int32_t y_at, int32_t n) {
  for (int32_t at = 0; at < n; at += kWidth)
    store_lanes<kWidth>(operand<int32_t>(y, y_at), at, n, aie::vector<int32_t, kWidth>(get_scd_v16int32()));
}

} // extern "C"
