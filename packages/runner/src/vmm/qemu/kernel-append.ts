import type { GuestBoot } from '../driver.ts';
import { deviceModel } from './device-model.ts';

/**
 * Frequency of the local APIC's timer in QEMU, with the divisor that Linux sets. Linux measures it during 100 ms of its boot, with
 * the time-stamp counter: a microvm has nothing that would tell it.
 */
const EMULATED_TIMER_HZ = 62_500_000;

/**
 * Command line of the guest's kernel. Of a template's it prints from the start, which tells a slow boot from one that hangs, and
 * costs the boot little; from its agent's start on a guest's kernel prints emergencies only. Under emulation:
 * - mitigations guard against speculation, which emulated code does not do;
 * - the emulator's time-stamp counter is the host's, and the guest is told its frequency: a microvm has nothing but
 *   an emulated PIT to measure it by, and on a busy host that goes wrong (one boot in ten hung). For the same reason
 *   it is not watched: the watchdog has only the PIT's tick to compare with, and would leave the guest with that;
 * - the agent is told the frequency of the timer, and ends a boot whose kernel has measured another one, if it is for a template:
 *   all its copies would have it, and nothing repeats the boot of a guest that shares folders;
 * - a guest that shares folders clears pages when it allocates them. QEMU translates code by page and learns from the guest's
 *   writes that a translation is stale, but virtiofsd, another process, writes what a guest reads into its memory. Without
 *   this a guest that maps a program would run what the page held before.
 *
 * Under KVM a guest's clock is kvm-clock, which needs no `tsc=reliable`: the processor that guests see does not promise a
 * time-stamp counter that never changes (`migratable=on`), as memory may be resumed on another host. There is no timer to check,
 * and looking for serial ports that do not exist costs exits to the VMM.
 */
export function kernelAppend(guest: GuestBoot): string {
  const { architecture, systemDisk } = deviceModel(guest.hardware.deviceModel);
  const { sharesFolders, verbose = !sharesFolders, tscKhz } = guest;
  const emulated = guest.accelerator === 'tcg';
  const parts = [
    verbose ? architecture.earlyConsole : `${architecture.console} quiet`,
    `init_on_alloc=${emulated && sharesFolders ? 1 : 0}`,
    'panic=-1',
    'reboot=t',
    `releap.net=${guest.guestNet}`,
    `releap.system=${systemDisk}`,
  ];
  if (emulated) {
    parts.push('mitigations=off');
    if (!sharesFolders) parts.push(`releap.timer_hz=${EMULATED_TIMER_HZ}`);
    if (tscKhz !== undefined) parts.push(`tsc_early_khz=${tscKhz}`, 'tsc=nowatchdog');
  }
  if (!emulated) parts.push('no_timer_check', '8250.nr_uarts=1');
  return parts.join(' ');
}
