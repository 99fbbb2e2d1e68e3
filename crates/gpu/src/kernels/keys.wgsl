// The product of a query and a key of the state.

var<workgroup> query: array<f32, 1024>;

fn product_with(at: u32) -> f32 {
    var product = 0.0;
    var w = 0u;
    // Four loads are under way at once; the sum has one order.
    let words = (p.size + VALUES - 1u) / VALUES;
    for (; w + 4u <= words; w += 4u) {
        let k0 = keys[at + w * 64u];
        let k1 = keys[at + (w + 1u) * 64u];
        let k2 = keys[at + (w + 2u) * 64u];
        let k3 = keys[at + (w + 3u) * 64u];
        let scale = key_scale(at, w);
        product = with_key(product, k0, w, scale);
        product = with_key(product, k1, w + 1u, scale);
        product = with_key(product, k2, w + 2u, scale);
        product = with_key(product, k3, w + 3u, scale);
    }
    for (; w < words; w += 1u) { product = with_key(product, keys[at + w * 64u], w, key_scale(at, w)); }
    return product;
}
