// Each invocation of write.wgsl rounds the floats of one word.

fn write(row: u32, block: u32, head: u32, word: u32, at: u32) {
    let source = (row * p.heads + head) * p.size + word * VALUES;
    var bits = 0u;
    if VALUES == 1u {
        bits = bitcast<u32>(x[source]);
    } else {
        bits = rounded(row, x[source]);
        if word * 2u + 1u < p.size { bits |= rounded(row, x[source + 1u]) << 16u; }
    }
    held[place(block, head, word, at)] = bits;
}
