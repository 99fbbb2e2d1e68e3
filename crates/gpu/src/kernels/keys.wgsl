// The product of a query and a key of the state; several words of the key are under way at once, and the sum has one order.

var<workgroup> query: array<f32, 1024>;

fn with_key(product: f32, key: u32, w: u32, scale: f32) -> f32 {
    let k = key_numbers(key, scale);
    let d = w * VALUES;
    var sum = fma(query[d], k.x, product);
    if VALUES > 1u && d + 1u < p.size { sum = fma(query[d + 1u], k.y, sum); }
    if VALUES > 2u { sum = fma(query[d + 3u], k.w, fma(query[d + 2u], k.z, sum)); }
    return sum;
}

fn product_with(at: u32) -> f32 {
    var product = 0.0;
    var w = 0u;
    let words = (p.size + VALUES - 1u) / VALUES;
LOADS
    for (; w < words; w += 1u) { product = with_key(product, keys[at + w * 64u], w, key_scale(at, w)); }
    return product;
}
