// Each invocation of write.wgsl makes two groups of 32 numbers codes of Q8_0, as the CPU does, and writes the word of
// their scales.

fn code(x: f32) -> u32 {
    let magnitude = min(abs(x), 127.0);
    let whole = floor(magnitude);
    // Halves are rounded away from zero.
    let rounded = i32(select(whole, whole + 1.0, magnitude - whole >= 0.5));
    return u32(select(rounded, -rounded, x < 0.0)) & 0xffu;
}

fn write(row: u32, block: u32, head: u32, unit: u32, at: u32) {
    let source = (row * p.heads + head) * p.size;
    var scales = 0u;
    for (var half = 0u; half < 2u; half += 1u) {
        let first = unit * 64u + half * 32u;
        if first >= p.size { break; }
        var largest = 0.0;
        for (var i = 0u; i < 32u; i += 1u) {
            let number = x[source + first + i];
            if abs(number) > abs(largest) { largest = number; }
        }
        let scale = quotient(abs(largest), 127.0);
        var inverse = 0.0;
        if scale > 0.0 { inverse = quotient(1.0, scale); }
        let bits = half_bits(scale);
        if is_infinite(bits) { note(row, largest); }
        scales |= bits << (16u * half);
        for (var word = 0u; word < 8u; word += 1u) {
            let begin = source + first + word * 4u;
            let codes = code(x[begin] * inverse) | (code(x[begin + 1u] * inverse) << 8u)
                | (code(x[begin + 2u] * inverse) << 16u) | (code(x[begin + 3u] * inverse) << 24u);
            held[place(block, head, first / 4u + word, at)] = codes;
        }
    }
    held[place(block, head, p.size / 4u + unit, at)] = scales;
}
