/** Hosts that accept no connections: gateways ask for some over the control plane, through any of its servers. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, before, it } from 'node:test';
import { REVERSE_URL } from '@releap/certificates/hosts';
import { REVERSE_CAPABILITY } from '@releap/contract/runner';
import { GatewayClient } from '@releap/testing/gateway-client';
import { startWorld, until, type ScriptedRunner, type World } from '@releap/testing/world';

const ADDRESS = '10.0.0.1:7077';

let world: World;
before(async () => {
  world = await startWorld();
});
after(() => world[Symbol.asyncDispose]());

const closedHost = (): Promise<ScriptedRunner> =>
  world.runner({ hello: { capabilities: [REVERSE_CAPABILITY] } });
const dialled = ({ received }: ScriptedRunner): string[] =>
  received.flatMap((message) => (message.type === 'dial' ? [message.address] : []));
const dataUrlOf = async (id: string): Promise<string | undefined> =>
  (await world.database.pool.query<{ data_url: string }>('select data_url from runners where id = $1', [id]))
    .rows[0]?.data_url;

it('a gateway has such a host connect to it, whichever server either is connected to', async () => {
  await using other = await world.another();
  const host = await closedHost();
  assert.equal(await dataUrlOf(host.id), REVERSE_URL);
  const open = await world.runner();
  assert.notEqual(await dataUrlOf(open.id), REVERSE_URL);
  for (const url of [world.internalUrl, other.internalUrl]) {
    using gateway = await new GatewayClient(url).open();
    const before = dialled(host).length;
    await until(() => {
      for (const runnerId of [host.id, open.id, randomUUID(), 'no id'])
        gateway.send({ type: 'dial', runner_id: runnerId, address: ADDRESS });
      return dialled(host).length > before;
    });
  }
  assert.deepEqual([...new Set(dialled(host))], [ADDRESS]);
  // One that accepts connections, or is of an earlier version, is not asked.
  assert.deepEqual(dialled(open), []);
});
