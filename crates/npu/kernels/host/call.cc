// Calls one function of kernels.cc: reads its name, the sizes of its operands in bytes and its parameters as lines, then
// the operands' bytes; writes the bytes of all operands back.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

extern "C" {
void add(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t);
void copy(int32_t *, int32_t, int32_t *, int32_t, int32_t);
void gemm_bf16(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t);
void gemm_bf16_direct(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t);
void gemm_bf16_tuned(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t);
void gemv_bf16(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t);
void gemv_bf16_part(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t);
void rope_halves(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t);
void rope_neighbours(int32_t *, int32_t, int32_t *, int32_t, int32_t *, int32_t, int32_t, int32_t, int32_t);
void store_bf16(int32_t *, int32_t, int32_t *, int32_t, int32_t);
void zero_f32(int32_t *, int32_t, int32_t);
}

int main() {
  std::string name;
  size_t operands = 0, parameters = 0;
  std::cin >> name >> operands >> parameters;
  std::vector<size_t> sizes(operands);
  for (auto &size : sizes)
    std::cin >> size;
  std::vector<int32_t> p(parameters);
  for (auto &parameter : p)
    std::cin >> parameter;
  std::cin.ignore(1);
  // One word before each operand, so that offsets count.
  std::vector<std::vector<int32_t>> words;
  for (size_t size : sizes) {
    words.emplace_back(2 + (size + 3) / 4);
    std::cin.read(reinterpret_cast<char *>(words.back().data() + 1), size);
  }
  auto at = [&](size_t index) { return words[index].data(); };
  if (name == "gemm_bf16")
    gemm_bf16(at(0), 4, at(1), 4, at(2), 4, p[0], p[1], p[2]);
  else if (name == "gemm_bf16_direct")
    gemm_bf16_direct(at(0), 4, at(1), 4, at(2), 4, p[0], p[1], p[2]);
  else if (name == "gemm_bf16_tuned")
    gemm_bf16_tuned(at(0), 4, at(1), 4, at(2), 4, p[0], p[1], p[2]);
  else if (name == "gemv_bf16")
    gemv_bf16(at(0), 4, at(1), 4, at(2), 4, p[0], p[1]);
  else if (name == "gemv_bf16_part")
    gemv_bf16_part(at(0), 4, at(1), 4, at(2), 4, p[0], p[1]);
  else if (name == "add")
    add(at(0), 4, at(1), 4, at(2), 4, p[0]);
  else if (name == "copy")
    copy(at(0), 4, at(1), 4, p[0]);
  else if (name == "rope_halves")
    rope_halves(at(0), 4, at(1), 4, at(2), 4, p[0], p[1], p[2]);
  else if (name == "rope_neighbours")
    rope_neighbours(at(0), 4, at(1), 4, at(2), 4, p[0], p[1], p[2]);
  else if (name == "store_bf16")
    store_bf16(at(0), 4, at(1), 4, p[0]);
  else if (name == "zero_f32")
    zero_f32(at(0), 4, p[0]);
  else {
    std::cerr << name << " is not called here\n";
    return 1;
  }
  for (size_t index = 0; index < operands; ++index)
    std::cout.write(reinterpret_cast<char *>(words[index].data() + 1), sizes[index]);
}
