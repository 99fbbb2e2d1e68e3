// A stand-in on a host for the part of AIE's vector API that kernels.cc uses. Vectors are arrays; sums are f32 and
// added in ascending order; conversions to bf16 round to the nearest, ties to even; functions are those of the C library.

#ifndef GIRIH_HOST_AIE_API
#define GIRIH_HOST_AIE_API

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>

struct bfloat16 {
  uint16_t bits;
  bfloat16() = default;
  explicit bfloat16(float value) {
    uint32_t word;
    std::memcpy(&word, &value, 4);
    const bool is_nan = (word & 0x7fffffff) > 0x7f800000;
    bits = (is_nan ? word | 0x00400000 : word + 0x7fff + (word >> 16 & 1)) >> 16;
  }
  explicit operator float() const {
    const uint32_t word = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  }
};

// Two integers of four bits, the first one in the lower half.
struct uint4 {
  uint8_t pair;
};
struct int4 {
  uint8_t pair;
};

struct accfloat {};
struct accauto {};

namespace aie {

enum class rounding_mode { floor, conv_even };
inline void set_rounding(rounding_mode) {}

template <typename T, int N> struct vector {
  T values[N];
  void set(T value, int lane) { values[lane] = value; }
  T get(int lane) const { return values[lane]; }
  template <int M> void insert(int part, const vector<T, M> &from) {
    std::memcpy(values + part * M, from.values, sizeof from.values);
  }
  template <int M> vector<T, M> extract(int part) const {
    vector<T, M> out;
    std::memcpy(out.values, values + part * M, sizeof out.values);
    return out;
  }
};

// Integers of four bits take half a byte each.
template <int N> struct vector<uint4, N> {
  uint4 values[N / 2];
};
template <int N> struct vector<int4, N> {
  int4 values[N / 2];
};

template <int N> struct mask {
  bool lanes[N];
  bool empty() const {
    for (bool lane : lanes)
      if (lane)
        return false;
    return true;
  }
};

template <typename Tag, int N> struct accum {
  float sums[N];
  accum() = default;
  template <typename T> explicit accum(const vector<T, N> &from) {
    for (int lane = 0; lane < N; ++lane)
      sums[lane] = static_cast<float>(from.values[lane]);
  }
  template <typename T> vector<T, N> to_vector() const {
    vector<T, N> out;
    for (int lane = 0; lane < N; ++lane)
      out.values[lane] = static_cast<T>(sums[lane]);
    return out;
  }
};

template <int N, typename T> vector<T, N> load_unaligned_v(const T *from) {
  vector<T, N> out;
  std::memcpy(out.values, from, sizeof out.values);
  return out;
}
template <int N, typename T> vector<T, N> load_v(const T *from) { return load_unaligned_v<N>(from); }
template <typename T, int N> void store_unaligned_v(T *to, const vector<T, N> &from) {
  std::memcpy(to, from.values, sizeof from.values);
}
template <typename T, int N> void store_v(T *to, const vector<T, N> &from) { store_unaligned_v(to, from); }

template <typename T, int N> struct Zeros {
  static vector<T, N> make() {
    vector<T, N> out;
    std::memset(out.values, 0, sizeof out.values);
    return out;
  }
};
template <int N> struct Zeros<accfloat, N> {
  static accum<accfloat, N> make() {
    accum<accfloat, N> out;
    std::memset(out.sums, 0, sizeof out.sums);
    return out;
  }
};
template <typename T, int N> auto zeros() { return Zeros<T, N>::make(); }

template <typename T, int N> vector<T, N> transpose(const vector<T, N> &from, int rows, int columns) {
  vector<T, N> out;
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column)
      out.values[column * rows + row] = from.values[row * columns + column];
  return out;
}

template <int N, typename T> accum<accfloat, N> mac(accum<accfloat, N> sums, const vector<T, N> &a, const vector<T, N> &b) {
  for (int lane = 0; lane < N; ++lane)
    sums.sums[lane] += static_cast<float>(a.values[lane]) * static_cast<float>(b.values[lane]);
  return sums;
}

template <int N, typename T> accum<accfloat, N> mul(const vector<T, N> &a, const vector<T, N> &b) {
  accum<accfloat, N> sums;
  for (int lane = 0; lane < N; ++lane)
    sums.sums[lane] = static_cast<float>(a.values[lane]) * static_cast<float>(b.values[lane]);
  return sums;
}

template <int N, typename T> accum<accfloat, N> msc(accum<accfloat, N> sums, const vector<T, N> &a, const vector<T, N> &b) {
  for (int lane = 0; lane < N; ++lane)
    sums.sums[lane] -= static_cast<float>(a.values[lane]) * static_cast<float>(b.values[lane]);
  return sums;
}

template <int N, typename T> accum<accfloat, N> add(accum<accfloat, N> sums, const vector<T, N> &values) {
  for (int lane = 0; lane < N; ++lane)
    sums.sums[lane] += static_cast<float>(values.values[lane]);
  return sums;
}

template <typename T, int N> vector<T, N> broadcast(T value) {
  vector<T, N> out;
  for (T &lane : out.values)
    lane = value;
  return out;
}

template <typename T, int N> vector<T, 2 * N> concat(const vector<T, N> &a, const vector<T, N> &b) {
  vector<T, 2 * N> out;
  out.insert(0, a);
  out.insert(1, b);
  return out;
}

template <int N> vector<uint8_t, N> unpack(const vector<uint4, N> &from) {
  vector<uint8_t, N> out;
  for (int lane = 0; lane < N; ++lane)
    out.values[lane] = from.values[lane / 2].pair >> (lane % 2 * 4) & 15;
  return out;
}
template <int N> vector<int8_t, N> unpack(const vector<int4, N> &from) {
  vector<int8_t, N> out;
  for (int lane = 0; lane < N; ++lane)
    out.values[lane] = static_cast<int8_t>((from.values[lane / 2].pair >> (lane % 2 * 4) & 15) << 4) >> 4;
  return out;
}

template <typename To, typename T, int N> vector<To, N> to_float(const vector<T, N> &from) {
  vector<To, N> out;
  for (int lane = 0; lane < N; ++lane)
    out.values[lane] = static_cast<To>(static_cast<float>(from.values[lane]));
  return out;
}

template <typename T, int N> vector<T, N> bit_or(const vector<T, N> &a, const vector<T, N> &b) {
  vector<T, N> out;
  for (int lane = 0; lane < N; ++lane)
    out.values[lane] = a.values[lane] | b.values[lane];
  return out;
}

template <typename T, int N> mask<N> neq(const vector<T, N> &a, T value) {
  mask<N> out;
  for (int lane = 0; lane < N; ++lane)
    out.lanes[lane] = a.values[lane] != value;
  return out;
}

// What `of` gives for each lane of f32 vectors.
template <typename To, int N, typename Of> vector<To, N> each(Of of) {
  vector<To, N> out;
  for (int lane = 0; lane < N; ++lane)
    out.values[lane] = static_cast<To>(of(lane));
  return out;
}

template <int N> vector<float, N> add(const vector<float, N> &a, const vector<float, N> &b) {
  return each<float, N>([&](int lane) { return a.values[lane] + b.values[lane]; });
}
template <int N> vector<float, N> sub(const vector<float, N> &a, const vector<float, N> &b) {
  return each<float, N>([&](int lane) { return a.values[lane] - b.values[lane]; });
}
template <int N> vector<float, N> max(const vector<float, N> &a, const vector<float, N> &b) {
  return each<float, N>([&](int lane) { return a.values[lane] > b.values[lane] ? a.values[lane] : b.values[lane]; });
}
template <typename To, int N> vector<To, N> exp2(const vector<float, N> &x) {
  return each<To, N>([&](int lane) { return std::exp2(x.values[lane]); });
}
template <typename To, int N> vector<To, N> tanh(const vector<float, N> &x) {
  return each<To, N>([&](int lane) { return std::tanh(x.values[lane]); });
}
inline float inv(float x) { return 1 / x; }
inline float invsqrt(float x) { return 1 / std::sqrt(x); }

template <int N> float reduce_max(const vector<float, N> &from) {
  float largest = from.values[0];
  for (float value : from.values)
    largest = value > largest ? value : largest;
  return largest;
}

template <int N> float reduce_add(vector<float, N> values) {
  for (int width = N / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane)
      values.values[lane] += values.values[lane + width];
  return values.values[0];
}

template <int M, int K, int N, typename A, typename B, typename Tag> struct mmul {
  static constexpr int size_A = M * K, size_B = K * N, size_C = M * N;
  float sums[size_C];
  explicit mmul(const vector<float, size_C> &from) { std::memcpy(sums, from.values, sizeof sums); }
  void mac(const vector<A, size_A> &a, const vector<B, size_B> &b) {
    for (int step = 0; step < K; ++step)
      for (int row = 0; row < M; ++row)
        for (int column = 0; column < N; ++column)
          sums[row * N + column] +=
              static_cast<float>(a.values[row * K + step]) * static_cast<float>(b.values[step * N + column]);
  }
  template <typename T> vector<T, size_C> to_vector() const {
    vector<T, size_C> out;
    for (int at = 0; at < size_C; ++at)
      out.values[at] = static_cast<T>(sums[at]);
    return out;
  }
};

} // namespace aie

// The cascade of one core that sends to itself.
using v16int32 = aie::vector<int32_t, 16>;
inline std::deque<v16int32> cascade;
inline void put_mcd(const v16int32 &beat) { cascade.push_back(beat); }
inline v16int32 get_scd_v16int32() {
  const v16int32 beat = cascade.front();
  cascade.pop_front();
  return beat;
}

#endif
