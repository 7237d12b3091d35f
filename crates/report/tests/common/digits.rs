//! Pictures: handwritten digits, 8×8, from the data set of digits.

/// Each pixel is a digit of base 17, from `0` (paper) to `g` (ink).
const DIGITS: [&str; 10] = [
    "005d910000dfaf5003f20b8004c008800580098004b01c7002e5ac00006da000",
    "0005fd10002egg40008ggg4006fggg10037agg40000bgg10000cgg100006ec10",
    "02fgf20008e8e8000752g500000cd000008f100001f7000004g9882002fgggd0",
    "00aga10006e6g3000545f000000ce1000003bf1000000a8000988f60009ff900",
    "001a9000009f400001g5000004g14e4004gceg500017g9000002g400000ad000",
    "00dd820005gggc0001fc000000cd7100008ggc0000049g300015ef1000agg600",
    "000bc100008g9400003400000102820005ggge2002g93d7000be7g90001aea20",
    "004fgg500069bgb000003g500003ega0007ggb30008fd000005g7000007e2000",
    "003dd30002eccb0004g85f3001deg70000bgd10001gcde1000dd9g70003dga10",
    "00da100005ge700004g8e00002egg60000149d1000000d60005859e000ddfgd0",
];

/// A digit as a PNG file.
pub fn png(digit: usize) -> Vec<u8> {
    let pixels: Vec<u8> = (DIGITS[digit].chars())
        .map(|ink| (ink.to_digit(17).unwrap() * 255 / 16) as u8)
        .collect();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 8, 8);
    encoder.set_color(png::ColorType::Grayscale);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&pixels).unwrap();
    writer.finish().unwrap();
    bytes
}
