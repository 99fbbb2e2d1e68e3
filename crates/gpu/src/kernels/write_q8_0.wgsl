// Heads become codes of Q8_0, as on the CPU: two groups of 32 numbers at once, and the word of their scales.

fn units(size: u32) -> u32 { return (size + 63u) / 64u; }

fn code(x: f32) -> u32 {
    let magnitude = min(abs(x), 127.0);
    let whole = floor(magnitude);
    // Halves are rounded away from zero.
    let rounded = i32(select(whole, whole + 1.0, magnitude - whole >= 0.5));
    return u32(select(rounded, -rounded, x < 0.0)) & 0xffu;
}

fn write(to: Held, unit: u32) {
    var scales = 0u;
    for (var half = 0u; half < 2u; half += 1u) {
        let first = unit * 64u + half * 32u;
        if first >= to.size { break; }
        var largest = 0.0;
        var has_nan = false;
        for (var i = 0u; i < 32u; i += 1u) {
            let x = number(to.first + first + i);
            has_nan = has_nan || (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
            if abs(x) > abs(largest) { largest = x; }
        }
        let scale = quotient(abs(largest), 127.0);
        var inverse = 0.0;
        if scale > 0.0 { inverse = quotient(1.0, scale); }
        var bits = half_bits(scale);
        if has_nan {
            // Codes have no NaN, so the scale has it.
            bits = 0x7e00u;
        } else if is_infinite(bits) {
            note(to, largest);
        }
        scales |= bits << (16u * half);
        for (var word = 0u; word < 8u; word += 1u) {
            let begin = to.first + first + word * 4u;
            let codes = code(number(begin) * inverse) | (code(number(begin + 1u) * inverse) << 8u)
                | (code(number(begin + 2u) * inverse) << 16u) | (code(number(begin + 3u) * inverse) << 24u);
            hold(to, first / 4u + word, codes);
        }
    }
    hold(to, to.size / 4u + unit, scales);
}
