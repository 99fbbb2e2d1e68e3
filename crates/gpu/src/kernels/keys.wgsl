// The product of a query and a key of the state; LOADS words of the key are under way at once, and the sum has one order.

var<workgroup> query: array<f32, 1024>;

fn product_with(at: u32) -> f32 {
    var product = 0.0;
    var w = 0u;
    let words = (p.size + VALUES - 1u) / VALUES;
LOADS
    for (; w < words; w += 1u) { product = with_key(product, keys[at + w * 64u], w, key_scale(at, w)); }
    return product;
}
