import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { soak } from './soak/soak.ts';
import { leftovers } from '@releap/testing/leftovers';
import { isNightly } from '@releap/testing/repetitions';
import { Service } from '@releap/testing/service';

/** As `npm run soak`. Single pauses and stops have tests of their own in each run. */
const PAUSES = 100;
const STOPS = 50;

describe('a sandbox that works all the time', { skip: !isNightly() }, () => {
  test(`keeps every byte over ${PAUSES} pauses and ${STOPS} stops, and its processes over pauses`, async (t) => {
    await using service = await Service.start({ RELEAP_BUILTIN_IMAGES: 'debian' });
    const { rows, addresses, ms } = await soak(service, {
      pauses: PAUSES,
      stops: STOPS,
      onProgress: (line) => t.diagnostic(line),
    });
    assert.ok(rows > 0);
    assert.ok(
      addresses.length > PAUSES,
      `it came back with another address each time: ${addresses.join(' ')}`,
    );
    assert.deepEqual([ms.pause.length, ms.stop.length], [PAUSES, STOPS]);
    await service.stop();
    assert.deepEqual(await leftovers(service.home), []);
  });
});
