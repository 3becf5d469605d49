/** The network as programs end, are killed and run side by side. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createServer, type AddressInfo } from 'node:net';
import { once } from 'node:events';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { eventually } from '@releap/testing/eventually';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { run } from '../../src/process/index.ts';
import { serviceTag } from '../../src/network/address-plan.ts';
import { listNetns } from '../../src/network/host-state.ts';
import { Network } from '../../src/network/network.ts';
import { attachGuest } from '../support/namespaces.ts';
import { world, FORWARDING, GREETING } from '../support/network-slots-world.ts';
import { rulesOf } from './guests.ts';

test('our table comes back when another program flushes all rules, and foreign tables are left alone', async () => {
  await world.network.detach();
  await world.reopen({ firewallWatchMs: 20 });
  await using bound = await world.guest('flushed', { enabled: true, allow: ['web.example'] });
  await run('nft', ['flush', 'ruleset']);
  await run('nft', ['add', 'table', 'inet', 'foreign']);
  const table = `inet releap_${serviceTag(world.home)}`;
  while (!(await run('nft', ['list', 'tables'])).includes(table)) await sleep(20);
  assert.match(await run('nft', ['list', 'tables']), /inet foreign/);
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.3', port: 80 }), { error: 'ECONNREFUSED' });
  assert.deepEqual(await bound.ask('resolve', { name: 'web.example' }), { answers: ['203.0.113.2'] });
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.2', port: 80 }), { text: GREETING });
  await world.network.release('flushed');
  await run('nft', ['delete', 'table', 'inet', 'foreign']);
});

test('without our table nothing reaches metadata, private networks, the host or another sandbox', async () => {
  const metadata = ['169.254.169.254', '168.63.129.16', '100.100.100.200'];
  const closed = ['10.9.0.2', '192.168.7.7', ...metadata];
  await world.internet.ip(...closed.map((address) => `address replace ${address}/32 dev wan0`));
  await using free = await world.guest('windowed');
  await using bound = await world.guest('window-open', { enabled: true, allow: ['10.9.0.0/24'] });
  await free.ask('tcp-server', { host: '0.0.0.0', port: 80, name: 'sandbox' });
  const slots = ['windowed', 'window-open'].map((name) => world.network.adopt(name) ?? assert.fail());
  await world.internet.ip(...slots.map(({ hostAddress }) => `route replace ${hostAddress} via 203.0.113.1`));
  const host = createServer((socket) => socket.end('the host'));
  host.listen(0, '0.0.0.0');
  await once(host, 'listening');
  const { port } = host.address() as AddressInfo;
  // Nobody is there to load it again.
  await world.network.detach();
  await run('nft', ['flush', 'ruleset']);
  const refused = { error: 'ECONNREFUSED' };
  try {
    // The way is open: what follows is refused by the namespace of the sandbox.
    assert.deepEqual(await free.ask('tcp', { host: '203.0.113.2', port: 80 }), {
      text: `internet ${slots[0]?.hostAddress}\n`,
    });
    for (const address of closed)
      assert.deepEqual(await free.ask('tcp', { host: address, port: 80 }), refused, address);
    const { serviceAddress } = await rulesOf(slots[0] ?? assert.fail());
    for (const address of ['203.0.113.1', serviceAddress])
      assert.deepEqual(await free.ask('tcp', { host: address, port }), refused, address);
    const neighbour = { host: slots[0]?.hostAddress, port: 80 };
    assert.deepEqual(await bound.ask('tcp', neighbour), refused);
    // The network that its policy names.
    assert.match((await bound.ask('tcp', { host: '10.9.0.2', port: 80 })).text ?? '', /^internet/);
  } finally {
    host.close();
    await world.reopen();
  }
  // What was connected meanwhile is not let through as an established connection.
  assert.equal(await run('conntrack', ['-L', '-s', slots[0]?.hostAddress ?? '', '--mark', '0']), '');
  await world.network.reclaim(new Set());
});

test('our table comes back as soon as it is removed, not only at the next look', async () => {
  await world.network.detach();
  await world.reopen({ firewallWatchMs: 3_600_000 });
  const table = `inet releap_${serviceTag(world.home)}`;
  for (let time = 0; time < 2; time += 1) {
    await eventually(
      'the table',
      async () => (await run('nft', ['list', 'tables'])).includes(table) || undefined,
    );
    await run('nft', ['flush', 'ruleset']);
  }
  await eventually(
    'the table',
    async () => (await run('nft', ['list', 'tables'])).includes(table) || undefined,
  );
});

test('hostd killed at any step is started again, and slots are given and taken back all the same', async () => {
  await world.network.detach();
  const failpoints = await temporaryFolder('releap-failpoints-');
  process.env['RELEAP_CRASH_AT'] = failpoints;
  try {
    await world.reopen({ ahead: 1 });
    for (const step of ['namespace', 'veth', 'addresses', 'made', 'unlinked', 'namespace removed']) {
      await writeFile(join(failpoints, `hostd slot ${step}`), '');
      const slots = await Promise.all(
        ['one', 'two', 'three'].map((name) => world.network.take(`${name}-${step}`)),
      );
      await using guest = await attachGuest(`${world.unique}-killed`, slots[2] ?? assert.fail());
      assert.deepEqual(await guest.ask('tcp', { host: '203.0.113.2', port: 80 }), { text: GREETING });
      await world.network.reclaim(new Set());
      assert.deepEqual(await readdir(failpoints), [], `hostd was not killed at '${step}'`);
      for (const { hostAddress } of slots)
        assert.equal(await run('conntrack', ['-L', '-s', hostAddress]), '');
    }
    assert.equal(
      new Set(
        (await Promise.all([0, 1, 2, 3, 4, 5, 6, 7].map((n) => world.network.take(`all-${n}`)))).map(
          (s) => s.index,
        ),
      ).size,
      8,
    );
    await world.network.reclaim(new Set());
  } finally {
    delete process.env['RELEAP_CRASH_AT'];
    await rm(failpoints, { recursive: true });
  }
});

test('a runner killed at any time keeps every slot it gave, and leaves nothing once closed', async () => {
  await world.network.detach();
  const { log: _, ...plain } = world.options();
  const child = fileURLToPath(new URL('../support/network-child.ts', import.meta.url));
  for (const lines of [0, 1, 3, 6, 9]) {
    const runner = spawn(process.execPath, [child, JSON.stringify(plain)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const said: string[] = [];
    for await (const line of createInterface({ input: runner.stdout })) {
      said.push(line);
      if (said.length > lines) break;
    }
    const ended = once(runner, 'exit');
    runner.kill('SIGKILL');
    await ended;
    await world.reopen();
    const last = said.at(-1)?.split(' ');
    if (last?.[1] !== undefined) assert.equal(world.network.adopt(last[0] ?? '')?.hostAddress, last[1]);
    // The next one finds what this one left; only in the end is it all reclaimed.
    await world.network.detach();
  }
  await world.reopen();
  assert.equal((await run('ip', ['rule', 'show'])).match(/fwmark/g)?.length, 1);
  await world.network.reclaim(new Set());
  const slot = await world.network.take('after');
  assert.equal((await listNetns()).includes(slot.netns), true);
  await world.network.release('after');
});

test('two services side by side share no name and no address; closing leaves nothing', async () => {
  const otherHome = await temporaryFolder('releap-net-');
  const other = await Network.open(
    world.options({ dir: join(otherHome, 'n'), identity: otherHome, slots: 2 }),
  );
  try {
    const [mine, theirs] = [await world.network.take('mine'), await other.take('theirs')];
    assert.notEqual(mine.hostAddress, theirs.hostAddress);
    assert.notEqual(mine.netns, theirs.netns);
    assert.notEqual(mine.uid, theirs.uid);
  } finally {
    await other.close();
    await rm(otherHome, { recursive: true, force: true });
  }
  assert.equal((await readFile(FORWARDING, 'utf8')).trim(), '1');
  await world.network.close();
  const left = [
    await run('ip', ['-o', 'link']),
    await run('ip', ['netns', 'list']),
    await run('nft', ['list', 'tables']),
    await run('ip', ['route', 'show', 'table', 'all']),
    await run('ip', ['rule', 'show']),
  ].join('\n');
  assert.doesNotMatch(left, new RegExp(`${serviceTag(world.home)}|${serviceTag(otherHome)}|100\\.|fwmark`));
  assert.equal((await readFile(FORWARDING, 'utf8')).trim(), '0');
  await world.reopen();
});
