import type { GuestClient } from '../guest/index.ts';

/**
 * Largest difference to the host's clock that is left alone: a clock that drifts by 20 ppm has it after an hour and a half. What signs its
 * requests with the time tolerates seconds.
 */
const CLOCK_OFF_MS = 100;
/** Up to this difference the clock is slewed, which programs do not notice. */
const SLEW_MAX_MS = 1_000;

/**
 * Compares a guest's clock with the host's. Guests have nothing that disciplines their clocks: a host's NTP corrects the frequency of
 * its own, and what root sets in a guest stays.
 * @param onOff called when the clock is to be set
 */
export async function checkClock(
  guest: Pick<GuestClient, 'clockBehind' | 'slewClock'>,
  deadlineMs: number,
  onOff: () => void,
): Promise<void> {
  const behind = await guest.clockBehind({ deadlineMs });
  if (Math.abs(behind) <= CLOCK_OFF_MS) return;
  if (Math.abs(behind) > SLEW_MAX_MS) return onOff();
  await guest.slewClock(behind, { deadlineMs });
}
