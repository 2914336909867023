//! Arithmetic and the status flags that follow from it (Intel SDM volume 2, each instruction's
//! "Flags Affected").
//!
//! Where the manual leaves a flag undefined, the software CPU always does the same, so that a
//! guest runs alike on every machine:
//!
//! | instruction | undefined | here |
//! | --- | --- | --- |
//! | AND, TEST, XOR | AF | cleared |
//! | SHL, SHR | AF; OF unless the count is 1; CF when the count reaches the width (8 and 16 bits) | unchanged; unchanged; the last bit shifted out, 0 beyond that |
//! | ROL | OF unless the count is 1 | unchanged |
//! | IMUL | SF, ZF, AF, PF | unchanged |
//! | DIV | all | unchanged |

/// Carry flag (Intel SDM volume 1, figure 3-8, as for the others).
pub(super) const CF: u32 = 1 << 0;
/// Parity flag.
pub(super) const PF: u32 = 1 << 2;
/// Auxiliary carry flag.
pub(super) const AF: u32 = 1 << 4;
/// Zero flag.
pub(super) const ZF: u32 = 1 << 6;
/// Sign flag.
pub(super) const SF: u32 = 1 << 7;
/// Overflow flag.
pub(super) const OF: u32 = 1 << 11;
/// All status flags.
pub(super) const STATUS: u32 = CF | PF | AF | ZF | SF | OF;

/// Size of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// 8 bits.
    Byte,
    /// 16 bits.
    Word,
    /// 32 bits.
    Dword,
}

impl Width {
    /// Bytes of such an operand.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Word => 2,
            Self::Dword => 4,
        }
    }

    const fn bits(self) -> u32 {
        match self {
            Self::Byte => 8,
            Self::Word => 16,
            Self::Dword => 32,
        }
    }

    /// All bits of such an operand.
    pub(super) const fn mask(self) -> u32 {
        u32::MAX >> (32 - self.bits())
    }

    const fn sign_bit(self) -> u32 {
        1 << (self.bits() - 1)
    }
}

/// An operation of two operands that sets all status flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Adc,
    Add,
    And,
    /// As [`Binary::Sub`]; the result is not stored.
    Cmp,
    Sub,
    /// As [`Binary::And`]; the result is not stored.
    Test,
    Xor,
}

impl Binary {
    /// Whether the result goes to the first operand.
    pub(super) const fn stores(self) -> bool {
        !matches!(self, Self::Cmp | Self::Test)
    }
}

/// INC and DEC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Increment,
    Decrement,
}

/// Shifts and rotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shift {
    /// ROL.
    RotateLeft,
    /// SHL.
    Left,
    /// SHR.
    Right,
}

/// Result and status flags of `a` and `b`, both within `width`.
pub(super) fn binary(operation: Binary, width: Width, a: u32, b: u32, eflags: u32) -> (u32, u32) {
    match operation {
        Binary::Add => add(width, a, b, 0, eflags),
        Binary::Adc => add(width, a, b, eflags & CF, eflags),
        Binary::Sub | Binary::Cmp => subtract(width, a, b, eflags),
        Binary::And | Binary::Test => logic(width, a & b, eflags),
        Binary::Xor => logic(width, a ^ b, eflags),
    }
}

/// Result and flags of INC or DEC, which leave CF alone.
pub(super) fn step(step: Step, width: Width, a: u32, eflags: u32) -> (u32, u32) {
    let (result, flags) = match step {
        Step::Increment => add(width, a, 1, 0, eflags),
        Step::Decrement => subtract(width, a, 1, eflags),
    };
    (result, flags & !CF | eflags & CF)
}

/// Result and flags of a shift or rotation; of `count` the lowest five bits count.
pub(super) fn shift(shift: Shift, width: Width, a: u32, count: u32, eflags: u32) -> (u32, u32) {
    let count = count & 31;
    if count == 0 {
        return (a, eflags);
    }
    let (result, carry) = match shift {
        Shift::Left => {
            let wide = u64::from(a) << count;
            (wide as u32 & width.mask(), wide >> width.bits() & 1 != 0)
        }
        Shift::Right => (a >> count, a >> (count - 1) & 1 != 0),
        Shift::RotateLeft => {
            let turn = count % width.bits();
            let wide = u64::from(a) << turn;
            let result = (wide | wide >> width.bits()) as u32 & width.mask();
            (result, result & 1 != 0)
        }
    };
    let mut flags = eflags & !CF | flag(CF, carry);
    if shift != Shift::RotateLeft {
        flags = flags & !(ZF | SF | PF) | of_result(width, result);
    }
    if count == 1 {
        // One rule for all three: the sign changed. For ROL and SHL that is "the new sign differs
        // from CF", since CF is the old sign; for SHR the new sign is 0.
        flags = flags & !OF | flag(OF, (a ^ result) & width.sign_bit() != 0);
    }
    (result, flags)
}

/// Result and flags of a signed 32-bit multiplication: CF and OF say that bits were lost.
pub(super) fn multiply(a: u32, b: u32, eflags: u32) -> (u32, u32) {
    let full = i64::from(a as i32) * i64::from(b as i32);
    let lost = i32::try_from(full).is_err();
    (
        full as u32,
        eflags & !(CF | OF) | flag(CF, lost) | flag(OF, lost),
    )
}

/// Quotient and remainder of EDX:EAX by `divisor`; `None` where the processor raises #DE.
pub(super) fn divide(edx: u32, eax: u32, divisor: u32) -> Option<(u32, u32)> {
    let dividend = u64::from(edx) << 32 | u64::from(eax);
    let quotient = dividend.checked_div(u64::from(divisor))?;
    let remainder = dividend % u64::from(divisor);
    Some((u32::try_from(quotient).ok()?, remainder as u32))
}

fn add(width: Width, a: u32, b: u32, carry: u32, eflags: u32) -> (u32, u32) {
    let sum = u64::from(a) + u64::from(b) + u64::from(carry);
    let result = sum as u32 & width.mask();
    let overflow = (a ^ result) & (b ^ result) & width.sign_bit() != 0;
    let flags = of_result(width, result)
        | flag(CF, sum > u64::from(width.mask()))
        | flag(OF, overflow)
        | (a ^ b ^ result) & AF;
    (result, eflags & !STATUS | flags)
}

fn subtract(width: Width, a: u32, b: u32, eflags: u32) -> (u32, u32) {
    let result = a.wrapping_sub(b) & width.mask();
    let overflow = (a ^ b) & (a ^ result) & width.sign_bit() != 0;
    let flags =
        of_result(width, result) | flag(CF, a < b) | flag(OF, overflow) | (a ^ b ^ result) & AF;
    (result, eflags & !STATUS | flags)
}

fn logic(width: Width, result: u32, eflags: u32) -> (u32, u32) {
    (result, eflags & !STATUS | of_result(width, result))
}

/// ZF, SF and PF.
fn of_result(width: Width, result: u32) -> u32 {
    flag(ZF, result == 0)
        | flag(SF, result & width.sign_bit() != 0)
        | flag(PF, (result as u8).count_ones().is_multiple_of(2))
}

fn flag(flag: u32, set: bool) -> u32 {
    if set { flag } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: u32 = 0x0020_0602;

    #[test]
    fn additions_carry_and_overflow() {
        for (width, a, b, carry, result, flags) in [
            (Width::Dword, 1, 2, 0, 3, PF),
            (Width::Dword, u32::MAX, 1, 0, 0, CF | ZF | PF | AF),
            (
                Width::Dword,
                0x7fff_ffff,
                0,
                1,
                0x8000_0000,
                OF | SF | PF | AF,
            ),
            (Width::Byte, 0xff, 0xff, 1, 0xff, CF | SF | PF | AF),
            (Width::Byte, 0x80, 0x80, 0, 0, CF | OF | ZF | PF),
        ] {
            let got = binary(Binary::Adc, width, a, b, OTHERS | carry);
            assert_eq!(got, (result, OTHERS | flags), "{a:#x} + {b:#x} + {carry}");
        }
        // ADD does not look at the carry.
        assert_eq!(binary(Binary::Add, Width::Dword, 1, 2, CF), (3, PF));
    }

    #[test]
    fn subtractions_borrow_and_overflow() {
        for (width, a, b, result, flags) in [
            (Width::Dword, 5, 5, 0, ZF | PF),
            (Width::Dword, 0, 1, u32::MAX, CF | SF | PF | AF),
            (Width::Dword, 0x8000_0000, 1, 0x7fff_ffff, OF | PF | AF),
            (Width::Byte, 0x7f, 0xff, 0x80, CF | OF | SF),
        ] {
            for operation in [Binary::Sub, Binary::Cmp] {
                let got = binary(operation, width, a, b, OTHERS | STATUS);
                assert_eq!(got, (result, OTHERS | flags), "{a:#x} - {b:#x}");
            }
        }
    }

    #[test]
    fn logic_clears_carry_overflow_and_auxiliary_carry() {
        let got = binary(
            Binary::And,
            Width::Byte,
            0xf0,
            0x8f,
            OTHERS | CF | OF | AF | ZF,
        );
        assert_eq!(got, (0x80, OTHERS | SF));
        assert_eq!(
            binary(Binary::Test, Width::Dword, 0xf0, 0x0f, STATUS),
            (0, ZF | PF)
        );
        assert_eq!(
            binary(Binary::Xor, Width::Dword, 6, 6, STATUS),
            (0, ZF | PF)
        );
    }

    #[test]
    fn steps_leave_the_carry_alone() {
        for carry in [0, CF] {
            assert_eq!(
                step(Step::Increment, Width::Dword, u32::MAX, carry),
                (0, ZF | PF | AF | carry)
            );
            assert_eq!(
                step(Step::Increment, Width::Byte, 0x7f, carry),
                (0x80, OF | SF | AF | carry)
            );
            assert_eq!(
                step(Step::Decrement, Width::Dword, 0, carry),
                (u32::MAX, SF | PF | AF | carry)
            );
            assert_eq!(
                step(Step::Decrement, Width::Byte, 0x80, carry),
                (0x7f, OF | AF | carry)
            );
        }
    }

    #[test]
    fn shifts_and_rotations() {
        use Shift::{Left, Right, RotateLeft};
        let all = OTHERS | STATUS;
        // A count of 0 (of 32) changes nothing.
        for count in [0, 32, 64] {
            assert_eq!(shift(Left, Width::Dword, 5, count, all), (5, all));
        }
        assert_eq!(
            shift(Left, Width::Dword, 0xc000_0000, 1, OTHERS),
            (0x8000_0000, OTHERS | CF | SF | PF)
        );
        assert_eq!(
            shift(Left, Width::Dword, 0x4000_0000, 1, OTHERS),
            (0x8000_0000, OTHERS | OF | SF | PF)
        );
        assert_eq!(
            shift(Left, Width::Byte, 0x81, 4, OTHERS),
            (0x10, OTHERS),
            "bits beyond the width are dropped"
        );
        assert_eq!(shift(Left, Width::Byte, 0x01, 8, 0), (0, CF | ZF | PF));
        assert_eq!(shift(Left, Width::Byte, 0xff, 20, 0), (0, ZF | PF));
        assert_eq!(
            shift(Right, Width::Dword, 0x8000_0001, 1, OTHERS),
            (0x4000_0000, OTHERS | CF | OF | PF)
        );
        assert_eq!(shift(Right, Width::Dword, 0x8000_0000, 31, 0), (1, 0));
        assert_eq!(
            shift(RotateLeft, Width::Dword, 0x8000_0000, 1, OTHERS | ZF | PF),
            (1, OTHERS | ZF | PF | CF | OF)
        );
        assert_eq!(
            shift(RotateLeft, Width::Dword, 0x1234_5678, 4, CF),
            (0x2345_6781, CF)
        );
        assert_eq!(shift(RotateLeft, Width::Byte, 0x81, 8, 0), (0x81, CF));
        assert_eq!(shift(RotateLeft, Width::Byte, 0x12, 12, 0), (0x21, CF));
    }

    #[test]
    fn multiplication_tells_of_lost_bits() {
        assert_eq!(multiply(7, u32::MAX, ZF | CF | OF), (-7_i32 as u32, ZF));
        assert_eq!(multiply(0x10000, 0x10000, SF), (0, SF | CF | OF));
        assert_eq!(multiply(0x8000_0000, u32::MAX, 0), (0x8000_0000, CF | OF));
    }

    #[test]
    fn division_refuses_zero_and_overflow() {
        assert_eq!(divide(0, 17, 5), Some((3, 2)));
        assert_eq!(divide(4, 0, 5), Some((0xcccc_cccc, 4)));
        assert_eq!(divide(0, 1, 0), None);
        assert_eq!(divide(5, 0, 5), None);
    }
}
