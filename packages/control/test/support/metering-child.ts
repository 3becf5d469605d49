/** Charges in a process of its own as fast as it can, to be killed in the middle of it. */
import { openDatabase } from '@releap/database';
import { chargeMeters } from '../../src/tenancy/billing/charge-meters.ts';
import { PRICES } from './billing.ts';
import { pino } from 'pino';

const database = openDatabase({
  url: process.env['TEST_DATABASE_URL'] ?? '',
  log: pino({ level: 'silent' }),
  connections: 2,
});
process.on('disconnect', () => process.exit());
for (let passes = 0; ; passes++) {
  await chargeMeters(database.pool, PRICES, { meterMs: 1, batch: 40 });
  if (passes === 0) process.send?.('charging');
}
