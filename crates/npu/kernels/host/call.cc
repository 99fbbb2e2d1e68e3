// Calls one function of kernels.cc: reads its name, the sizes of its operands in bytes and its parameters as lines, then
// the operands' bytes; writes the bytes of all operands back. A parameter is given by its bits.

#include <bit>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

extern "C" {
void add(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t);
void attend(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t,
            int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, float);
void attend_clear(int32_t *, int32_t, int32_t, int32_t);
void attend_merge(int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t);
void attend_scores(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t,
                   int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, float);
void attend_store(int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t);
void attend_values(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t);
void copy(int32_t *, int32_t, int32_t *, int32_t, int32_t);
void dequant_q4nx(int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t);
void gelu(int32_t *, int32_t, int32_t *, int32_t, int32_t);
void gelu_mul(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t);
void gemm_bf16(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t);
void gemm_bf16_direct(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t);
void gemm_bf16_tuned(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t);
void gemv_bf16(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t);
void gemv_bf16_part(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t);
void gemv_q4nx(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t);
void layer_norm(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t,
                int32_t, float);
void receive(int32_t *, int32_t, int32_t);
void rms_norm(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t, float);
void rope_halves(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t);
void rope_neighbours(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t);
void scale(int32_t *, int32_t, int32_t *, int32_t, int32_t, float);
void send(int32_t *, int32_t, int32_t);
void silu_mul(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t);
void store_bf16(int32_t *, int32_t, int32_t *, int32_t, int32_t);
void unpack_q4nx(int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t);
void zero_f32(int32_t *, int32_t, int32_t);
}

namespace {

// Sends the words of one operand over the cascade, and receives them into the other.
void send_receive(int32_t *x, int32_t x_at, int32_t *y, int32_t y_at, int32_t n) {
  send(x, x_at, n);
  receive(y, y_at, n);
}

// The arguments of a call: for each operand its words and the offset of its bytes, then the parameters.
struct Arguments {
  std::vector<std::vector<int32_t>> words;
  std::vector<uint32_t> parameters;
  size_t operand = 0, parameter = 0;
  bool has_pointer = false;

  template <typename T> T next() {
    if constexpr (std::is_pointer_v<T>) {
      has_pointer = true;
      return words.at(operand++).data();
    } else if (has_pointer) {
      has_pointer = false;
      return 4; // One word lies before each operand, so that offsets count.
    } else {
      return std::bit_cast<T>(parameters.at(parameter++));
    }
  }
};

template <typename... T> void call(void (*function)(T...), Arguments &arguments) {
  // In braces, arguments are made in their order.
  std::apply(function, std::tuple<T...>{arguments.next<T>()...});
}

#define FUNCTION(name) {#name, [](Arguments &arguments) { call(name, arguments); }}

const std::map<std::string, std::function<void(Arguments &)>> functions = {
    FUNCTION(add),
    FUNCTION(attend),
    FUNCTION(attend_clear),
    FUNCTION(attend_merge),
    FUNCTION(attend_scores),
    FUNCTION(attend_store),
    FUNCTION(attend_values),
    FUNCTION(copy),
    FUNCTION(dequant_q4nx),
    FUNCTION(gelu),
    FUNCTION(gelu_mul),
    FUNCTION(gemm_bf16),
    FUNCTION(gemm_bf16_direct),
    FUNCTION(gemm_bf16_tuned),
    FUNCTION(gemv_bf16),
    FUNCTION(gemv_bf16_part),
    FUNCTION(gemv_q4nx),
    FUNCTION(layer_norm),
    FUNCTION(receive),
    FUNCTION(rms_norm),
    FUNCTION(rope_halves),
    FUNCTION(rope_neighbours),
    FUNCTION(scale),
    FUNCTION(send),
    FUNCTION(silu_mul),
    FUNCTION(store_bf16),
    FUNCTION(unpack_q4nx),
    FUNCTION(zero_f32),
    FUNCTION(send_receive),
};

} // namespace

int main() {
  std::string name;
  size_t operands = 0, parameters = 0;
  std::cin >> name >> operands >> parameters;
  std::vector<size_t> sizes(operands);
  for (auto &size : sizes)
    std::cin >> size;
  Arguments arguments;
  arguments.parameters.resize(parameters);
  for (auto &parameter : arguments.parameters)
    std::cin >> parameter;
  std::cin.ignore(1);
  for (size_t size : sizes) {
    arguments.words.emplace_back(2 + (size + 3) / 4);
    std::cin.read(reinterpret_cast<char *>(arguments.words.back().data() + 1), size);
  }
  const auto found = functions.find(name);
  if (found == functions.end()) {
    std::cerr << name << " is not called here\n";
    return 1;
  }
  found->second(arguments);
  for (size_t index = 0; index < operands; ++index)
    std::cout.write(reinterpret_cast<char *>(arguments.words[index].data() + 1), sizes[index]);
}
