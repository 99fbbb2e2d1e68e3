// Keys in floats: one or two in a word.

fn key_scale(at: u32, w: u32) -> f32 { return 1.0; }

fn key_numbers(key: u32, scale: f32) -> vec4<f32> { return vec4<f32>(numbers(key), 0.0, 0.0); }
