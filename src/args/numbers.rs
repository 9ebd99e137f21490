//! Numbers on the command line. What they are for is not known here.

/// A number that single precision holds; NaN and infinity are none.
pub(super) fn finite_f32(text: &str) -> Result<f32, String> {
    let number = finite_f64(text)? as f32;
    if number.is_finite() {
        Ok(number)
    } else {
        Err("is too large".to_owned())
    }
}

/// A number; NaN and infinity are none.
pub(super) fn finite_f64(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if number.is_finite() {
        Ok(number)
    } else {
        Err("expected a finite number".to_owned())
    }
}
