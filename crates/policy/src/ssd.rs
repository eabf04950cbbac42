//! How a solid-state drive is written.

use evenkeel_model::jitter::Jitter;
use evenkeel_model::ssd::{Geometry, SsdParams};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device::complaint;
use crate::units::{Bytes, Duration};

/// Drives that [`Ssd`] starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// A client drive of 250 GB on a SATA link, half full, with a small fast region for writes.
    #[default]
    Sata,
    /// A data centre drive of 1.92 TB on PCIe 3.0 x4, full and aged, with capacitors behind its buffer.
    Nvme,
}

/// Declares the keys once for the table and for the conversion.
macro_rules! keys {
    (
        geometry { $($(#[$geometry_doc:meta])* $geometry:ident: $geometry_type:ty = $geometry_field:ident,)* }
        rest { $($(#[$doc:meta])* $key:ident: $type:ty = $field:ident,)* }
    ) => {
        /// A solid-state drive: what is left out comes from the preset.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct Ssd {
            /// The drive to start from: "sata" (default) or "nvme".
            #[serde(skip_serializing_if = "Option::is_none")]
            pub preset: Option<Preset>,
            $($(#[$geometry_doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $geometry: Option<$geometry_type>,)*
            $($(#[$doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $key: Option<$type>,)*
            /// How read, program and erase times vary: standard deviation of their logarithm, 0 (not at all) to 2.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub jitter: Option<f64>,
        }

        impl Ssd {
            /// The parameters of the model.
            ///
            /// # Errors
            /// Says which parameter makes no sense and what would be right.
            pub fn params(&self) -> Result<SsdParams, String> {
                let preset = match self.preset.unwrap_or_default() {
                    Preset::Sata => SsdParams::sata(),
                    Preset::Nvme => SsdParams::nvme(),
                };
                let params = SsdParams {
                    geometry: Geometry {
                        $($geometry_field: match self.$geometry {
                            Some(value) => value.try_into().map_err(|_| concat!(stringify!($geometry), " must be less than 4GiB"))?,
                            None => preset.geometry.$geometry_field,
                        },)*
                    },
                    $($field: self.$key.map_or(preset.$field, Into::into),)*
                    jitter: match self.jitter {
                        None => preset.jitter,
                        Some(0.0) => Jitter::None,
                        Some(sigma) => Jitter::LogNormal { sigma },
                    },
                };
                params.validate().map_err(|error| complaint(&error))?;
                Ok(params)
            }
        }
    };
}

keys! {
    geometry {
        /// Buses between controller and flash.
        channels: u32 = channels,
        /// Units that read, program and erase on their own, over all channels.
        dies: u32 = dies,
        /// Data one read of a die brings.
        page: Bytes = page_bytes,
        /// Data one program of a die writes.
        program: Bytes = program_bytes,
        /// Data a die erases at once.
        block: Bytes = block_bytes,
        /// Size of the address space.
        capacity: Bytes = capacity_bytes,
        /// Flash beyond the capacity that garbage collection can count on, in per cent of the capacity, 1 to 100.
        spare_percent: f64 = spare_percent,
        /// Share of the address space that holds data at the start, 0 to 1.
        used: f64 = used,
        /// Whether that data was overwritten at random for long, so that garbage is everywhere.
        aged: bool = aged,
    }
    rest {
        /// Commands the drive works on at once.
        queue_depth: u32 = queue_depth,
        /// Time the controller needs for each command, one after the other.
        command_time: Duration = command_time,
        /// Time a read spends in the firmware on top of it.
        read_latency: Duration = read_latency,
        /// The same for everything else.
        write_latency: Duration = write_latency,
        /// Payload bytes per second the host link moves.
        link_bandwidth: Bytes = link_bandwidth_bytes_per_s,
        /// Time the link is held by each command on top of its payload.
        link_command_time: Duration = link_command_time,
        /// Whether the link moves both ways at once.
        link_duplex: bool = link_duplex,
        /// Payload bytes per second each channel moves.
        channel_bandwidth: Bytes = channel_bandwidth_bytes_per_s,
        /// Time a die takes to read a page.
        page_read_time: Duration = page_read_time,
        /// Time a die takes to program.
        program_time: Duration = program_time,
        /// Time a die takes to erase a block.
        erase_time: Duration = erase_time,
        /// Time until a read gets through to a die that programs or erases; "0s" = it waits until the die is done.
        suspend_latency: Duration = suspend_latency,
        /// Memory for written data on its way to the flash.
        buffer: Bytes = buffer_bytes,
        /// Whether a flush has to wait until the buffer is in the flash.
        buffer_volatile: bool = buffer_volatile,
        /// Data that fits into cells written with one bit each; 0 = none.
        slc: Bytes = slc_bytes,
        /// Time a die takes to program such cells.
        slc_program_time: Duration = slc_program_time,
        /// How long the drive has nothing to do before it moves such data on.
        slc_idle: Duration = slc_idle,
    }
}
