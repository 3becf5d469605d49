/** The price table, in pico-credits (10^-12) per unit, so that a price per second loses no digit. */
import { parseDecimal, PRICE_DIGITS } from '@releap/contract';

export interface Prices {
  /** A guaranteed core for a second. */
  cpuSecond: bigint;
  /** A guaranteed GiB of memory for a second. */
  memGibSecond: bigint;
  /** A second of one core above the guarantee. */
  burstCpuSecond: bigint;
  /** A dedicated GPU for a second. */
  gpuSecond: bigint;
  /** A second of an invocation, for each vCPU of the function. */
  functionCpuSecond: bigint;
  /** A second of an invocation, for each GiB of memory of the function. */
  functionMemGibSecond: bigint;
  /** A second of the build of a Dockerfile, for each vCPU of its machine. */
  buildCpuSecond: bigint;
  /** The same for each GiB of its memory. */
  buildMemGibSecond: bigint;
  /** How long the start of an instance of a function is free, in milliseconds. */
  startFreeMs: number;
  /** Discount on the guarantees of the spot tier, in percent: 0 to 100. */
  spotDiscountPercent: number;
}

/** As configured, and as docs/configuration.md shows them. */
export const PRICE_DEFAULTS = {
  cpuSecond: '0.000014',
  memGibSecond: '0.0000045',
  burstCpuSecond: '0.000014',
  gpuSecond: '0.0006',
  functionCpuSecond: '0.000017',
  functionMemGibSecond: '0.000006',
  buildCpuSecond: '0.000014',
  buildMemGibSecond: '0.0000045',
  startFreeSeconds: 10,
  spotDiscountPercent: 60,
} as const;

/** @throws TypeError for a text that is not a decimal of at most 12 digits after the point, or is below 0 */
export function price(text: string): bigint {
  const value = parseDecimal(text, PRICE_DIGITS);
  if (value === null || value < 0n) throw new TypeError(`not a price: ${JSON.stringify(text)}`);
  return value;
}

export const DEFAULT_PRICES: Prices = {
  cpuSecond: price(PRICE_DEFAULTS.cpuSecond),
  memGibSecond: price(PRICE_DEFAULTS.memGibSecond),
  burstCpuSecond: price(PRICE_DEFAULTS.burstCpuSecond),
  gpuSecond: price(PRICE_DEFAULTS.gpuSecond),
  functionCpuSecond: price(PRICE_DEFAULTS.functionCpuSecond),
  functionMemGibSecond: price(PRICE_DEFAULTS.functionMemGibSecond),
  buildCpuSecond: price(PRICE_DEFAULTS.buildCpuSecond),
  buildMemGibSecond: price(PRICE_DEFAULTS.buildMemGibSecond),
  startFreeMs: PRICE_DEFAULTS.startFreeSeconds * 1000,
  spotDiscountPercent: PRICE_DEFAULTS.spotDiscountPercent,
};

export const FREE: Prices = {
  cpuSecond: 0n,
  memGibSecond: 0n,
  burstCpuSecond: 0n,
  gpuSecond: 0n,
  functionCpuSecond: 0n,
  functionMemGibSecond: 0n,
  buildCpuSecond: 0n,
  buildMemGibSecond: 0n,
  startFreeMs: 0,
  spotDiscountPercent: 0,
};
