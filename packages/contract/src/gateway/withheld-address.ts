/**
 * How long the address of a released sandbox network is not given to another sandbox, in milliseconds. Longer than any program on
 * the host opens connections to it: the gateway's engine stops within two seconds, also while the gateway hangs, and gives
 * up a connect after two more.
 */
export const ADDRESS_WITHHELD_MS = 10_000;
