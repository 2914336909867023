//! What a back end must do, shown by a few guest instructions each.
//!
//! A behaviour is one function over the traits alone, in the file of its area; [`suite`] lists
//! all of them and makes a test of each for one back end. A back end's test file consists of
//! `mod conformance;` and one line that names the function which opens the back end, or says by
//! [`backends::skip`] why it cannot be opened here or lacks the behaviour by design.
//!
//! A body that needs an optional power looks for it and says by [`Case::skip`] that it is absent.

pub mod backends;
pub mod clock;
pub mod faults;
pub mod interrupts;
pub mod machine;
pub mod memory;
pub mod ports;
pub mod refusals;
pub mod registers;
pub mod state;
pub mod stop;
pub mod vcpus;

use nvx_hypervisor::Hypervisor;

/// One behaviour on one back end.
pub struct Case {
    pub name: &'static str,
    pub backend: Box<dyn Hypervisor>,
}

impl Case {
    /// Says why the behaviour cannot be shown here.
    pub fn skip(&self, reason: &str) {
        backends::skip(self.name, reason);
    }
}

/// Makes a test of every behaviour for the back end that the function `$open` opens, which is
/// given the behaviour's name.
macro_rules! suite {
    ($open:path) => {
        $crate::conformance::suite! { $open,
            ports {
                writes_carry_their_width_and_value,
                reads_reach_the_register_and_leave_its_upper_bits,
                string_output_delivers_every_element,
                string_input_fills_memory,
            }
            memory {
                stores_outside_ram_are_exits,
                loads_outside_ram_reach_the_register,
                guest_and_host_see_the_same_ram,
                ram_above_the_gap_is_reached,
                dirty_log_is_exact,
                ram_that_cannot_be_backed_is_reported,
            }
            stop {
                halt_waits_and_ends_by_a_stop,
                a_spinning_guest_is_stopped,
                a_stop_before_the_run_holds_until_it_is_cleared,
                a_stop_before_a_thread_is_bound_holds,
                a_stop_finishes_a_port_read_and_executes_nothing,
                a_stop_after_a_port_write_does_not_repeat_it,
                a_stop_finishes_a_load_that_takes_two_exits,
                string_input_survives_a_stop_after_each_exit,
            }
            registers {
                general_registers_read_back,
                system_registers_read_back,
            }
            state {
                a_restored_guest_goes_on_where_it_stopped,
                a_held_vcpu_saves_the_same_state,
                a_restored_vcpu_saves_the_same_state,
                every_element_keeps_unusual_values,
                run_states_of_a_waiting_vcpu_survive,
                a_halted_vcpu_stays_halted,
            }
            vcpus {
                all_counts_run_and_stop,
                an_index_out_of_range_is_refused,
                an_index_is_given_once,
                a_restored_vcpu_is_started_by_the_first,
            }
            faults {
                triple_fault_is_a_shutdown,
                an_instruction_that_cannot_be_executed_is_typed,
            }
            clock {
                guest_time_goes_on_from_what_was_set,
            }
            interrupts {
                pic_edge_is_delivered_once,
                pic_level_is_delivered_while_asserted,
                ioapic_edge_is_delivered_once,
                ioapic_level_is_delivered_while_asserted,
                message_is_delivered_once,
                pit_goes_on,
                lapic_timer_goes_on,
                tsc_deadline_goes_on,
                expired_tsc_deadline_is_delivered_once,
            }
            refusals {
                missing_elements_are_named,
                malformed_elements_are_named,
                unknown_msr_is_named,
                foreign_irq_chip_layout_is_named,
                malformed_irq_chip_parts_are_named,
            }
        }
    };
    ($open:path, $($area:ident { $($behaviour:ident,)* })*) => {
        $(mod $area {
            $(#[test]
            fn $behaviour() {
                let name = concat!(stringify!($area), "::", stringify!($behaviour));
                let _limit = $crate::conformance::machine::time_limit(name);
                if let Some(backend) = $open(name) {
                    let case = $crate::conformance::Case { name, backend };
                    $crate::conformance::$area::$behaviour(&case);
                }
            })*
        })*
    };
}
pub(crate) use suite;
