// Heads become floats of the state, one or two in a word.

fn units(size: u32) -> u32 { return (size + VALUES - 1u) / VALUES; }

fn write(to: Held, word: u32) {
    let source = to.first + word * VALUES;
    var bits = 0u;
    if VALUES == 1u {
        bits = bitcast<u32>(number(source));
    } else {
        bits = rounded(to, number(source));
        if word * 2u + 1u < to.size { bits |= rounded(to, number(source + 1u)) << 16u; }
    }
    hold(to, word, bits);
}
