/** The billing service of a control server: its interface for other modules, and one charging pass. */
import type { CpuReading } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import { createBurstMeter } from './burst.ts';
import { chargeMeters, type ParkedMeter } from './charge-meters.ts';
import { createClockSteps } from './clock-steps.ts';
import { chargeFunctions, type ChargedFunctions } from './function-charges.ts';
import { createCreditCheck } from './credit-check.ts';
import { enforceOverdraft, type SandboxDeletion } from './overdraft.ts';
import { organizationsCrossing } from './unbilled.ts';
import type { Prices } from './prices.ts';
import { effectivePrices, type BillingSettings } from './settings.ts';

export interface Billing {
  readonly settings: BillingSettings;
  /** The prices in force: all 0 while nothing is charged. */
  readonly prices: Prices;
  /** Call it before anything that costs. @throws 402 when credits are enforced and this organization has none left */
  requireCredits(orgId: string): Promise<void>;
  /** CPU counters that a runner has reported. */
  readings(runnerId: string, readings: readonly CpuReading[]): void;
  /** Call it when the balance of this organization has changed. */
  changed(orgId: string): void;
  /** Charges meters that are due. One server is enough, and any number may. */
  chargeMeters(): Promise<void>;
  /** Charges what the runners that are connected to this server have reported. */
  chargeBursts(): Promise<void>;
  /** If credits are enforced: charges organizations whose uncharged use exceeds their balance, and enforces the limit. */
  enforceLimits(): Promise<void>;
}

export interface BillingOptions {
  database: Database;
  lifecycle: SandboxDeletion;
  settings: BillingSettings;
  log: Logger;
}

const FORGET_MS = 3_600_000;

export function createBilling({ database, lifecycle, settings, log }: BillingOptions): Billing {
  const check = createCreditCheck(database, settings);
  const bursts = createBurstMeter(database);
  const clock = createClockSteps(database, log);
  const prices = effectivePrices(settings);
  /** Charged organizations whose overdraft check is outstanding; a failed check is repeated. */
  const owing = new Set<string>();
  let forgetAt = performance.now() + FORGET_MS;

  function owe(orgIds: readonly string[]): void {
    for (const id of orgIds) owing.add(id);
  }

  async function enforce(): Promise<void> {
    const charged = [...owing];
    // What is charged meanwhile is checked again.
    owing.clear();
    check.charged(charged);
    try {
      await enforceOverdraft({ database, lifecycle, settings, log }, charged);
    } catch (error) {
      owe(charged);
      throw error;
    }
  }

  function warn(parked: readonly ParkedMeter[]): void {
    for (const { id, sandboxId, orgId, reason } of parked)
      log.error(
        { meter: id, vm: sandboxId, org: orgId, reason },
        'a meter could not be charged and is parked for an hour',
      );
  }

  function warnOfFunctions(parked: ChargedFunctions['parked']): void {
    for (const { functionId, reason } of parked)
      log.error(
        { function: functionId, reason },
        'the invocations of a function could not be charged and are parked for an hour',
      );
  }

  return {
    settings,
    prices,
    requireCredits: (orgId) => check.require(orgId),
    readings: (runnerId, readings) => bursts.take(runnerId, readings),
    changed: (orgId) => check.charged([orgId]),
    async chargeMeters() {
      await clock.look();
      const { orgs, parked } = await chargeMeters(database.pool, prices, { meterMs: settings.meterMs });
      warn(parked);
      // At once: if a later charge fails, the next pass enforces the limits of these.
      owe(orgs);
      const functions = await chargeFunctions(database.pool);
      owe(functions.orgs);
      warnOfFunctions(functions.parked);
      await enforce();
    },
    async chargeBursts() {
      // Each server follows the clock, so that the next one that charges meters knows of its steps.
      await clock.look();
      owe(await bursts.charge(prices));
      await enforce();
      if (performance.now() < forgetAt) return;
      forgetAt = performance.now() + FORGET_MS;
      await bursts.forget();
    },
    async enforceLimits() {
      if (settings.mode !== 'enforce') return;
      const crossing = await organizationsCrossing(database.pool, prices, settings.overdraftLimit);
      if (crossing.length === 0) return;
      const { parked } = await chargeMeters(database.pool, prices, { meterMs: 0, orgs: crossing });
      warn(parked);
      warnOfFunctions((await chargeFunctions(database.pool, { windowMs: 0, orgs: crossing })).parked);
      owe(crossing);
      await enforce();
    },
  };
}
