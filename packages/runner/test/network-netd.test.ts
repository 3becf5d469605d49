import assert from 'node:assert/strict';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { readFile, rm } from 'node:fs/promises';
import { connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { after, before, mock, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { eventually } from '@releap/testing/eventually';
import { run } from '../src/process/index.ts';
import { serviceTag } from '../src/network/address-plan.ts';
import { HelperProcess } from '../src/network/netd/helper-process.ts';
import { Network } from '../src/network/network.ts';
import { identifyProcess, isAlive, killProcess } from '../src/vmm/process-identity.ts';
import { SlotPool } from '../src/network/slot-pool.ts';
import { firstBefore } from './support/first-before.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { NetworkWorld } from './support/network-world.ts';

isolateNetwork(fileURLToPath(import.meta.url));

let world: NetworkWorld;

before(async () => {
  world = await NetworkWorld.start({
    // Every name is at an address of its own: `a7.example` at 203.0.113.7.
    resolve: (name) => [`203.0.113.${/^a(\d+)\./.exec(name)?.[1] ?? 9}`],
    network: { ahead: 1 },
  });
});
after(() => world[Symbol.asyncDispose]());

async function netdPid(): Promise<number> {
  return (await world.network.netdPid()) ?? assert.fail('netd does not run');
}

/** Kills it, and waits until it has ended. */
async function kill(pid: number): Promise<void> {
  await killProcess(identifyProcess(pid), 120_000);
}

async function dial(port: number): Promise<{ socket: Socket; said: () => string }> {
  const socket = connect({ host: '127.0.0.1', port });
  await once(socket, 'connect');
  socket.on('error', () => undefined);
  let text = '';
  socket.setEncoding('utf8').on('data', (chunk) => {
    text += String(chunk);
  });
  await eventually('the guest greets', () => text.includes('\n'));
  return { socket, said: () => text };
}

const TCP_8080 = [{ vm_port: 8080, proto: 'tcp' as const }];

test('netd has no privileges, and reaches sandboxes, name servers and public addresses, never the host', async () => {
  await using served = await world.guest('served');
  await served.ask('tcp-server', { host: '0.0.0.0', port: 80, name: 'guest' });
  const status = await readFile(`/proc/${await netdPid()}/status`, 'utf8');
  const uid = /^Uid:\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)$/m.exec(status)?.slice(1) ?? [];
  assert.equal(new Set(uid).size, 1);
  assert.notEqual(uid[0], '0');
  assert.match(status, /^CapEff:\s+0+$/m);
  assert.match(status, /^CapPrm:\s+0+$/m);
  assert.match(status, /^Groups:\s*$/m);
  assert.match(status, /^NoNewPrivs:\s+1$/m);

  await using server = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  assert.ok(address !== null && typeof address === 'object');
  const script =
    'use IO::Socket::INET; print IO::Socket::INET->new(PeerAddr => shift, Timeout => 5) ? "in" : $!';
  const attempt = (target: string): Promise<string> =>
    run('setpriv', [
      `--reuid=${uid[0]}`,
      `--regid=${uid[0]}`,
      '--clear-groups',
      'perl',
      '-e',
      script,
      target,
    ]);
  assert.equal(await attempt(`${world.network.adopt('served')?.hostAddress}:80`), 'in');
  assert.equal(await attempt('203.0.113.2:80'), 'in');
  for (const target of [
    `127.0.0.1:${address.port}`,
    `203.0.113.1:${address.port}`,
    '169.254.169.254:80',
    '10.9.0.2:80',
  ])
    assert.match(await attempt(target), /refused|prohibited|No route/);
  await world.network.release('served');
});

test('names and forwards work while no runner runs, and connections outlive its restart', async () => {
  await using open = await world.guest('open');
  await using bound = await world.guest('bound', { enabled: true, allow: ['*.example'] });
  await open.ask('tcp-server', { host: '0.0.0.0', port: 8080, name: 'guest' });
  const mapping = await world.network.forward('open', TCP_8080);
  const held = await dial(mapping[0]?.host_port ?? 0);
  assert.deepEqual(await bound.ask('resolve', { name: 'a2.example' }), { answers: ['203.0.113.2'] });
  const pid = await netdPid();

  await world.network.detach();
  assert.deepEqual(await open.ask('resolve', { name: 'a1.example' }), { answers: ['203.0.113.1'] });
  (await dial(mapping[0]?.host_port ?? 0)).socket.destroy();
  assert.deepEqual(await bound.ask('resolve', { name: 'other.org' }), { error: 'ENOTFOUND' });
  assert.deepEqual(await bound.ask('resolve', { name: 'a2.example' }), { answers: ['203.0.113.2'] });
  assert.match((await bound.ask('tcp', { host: '203.0.113.2', port: 80 })).text ?? '', /^internet/);
  // An address that must be opened waits for the runner, which opens it.
  const [late] = await Promise.all([
    eventually('an answer', async () => {
      const answer = await bound.ask('resolve', { name: 'a3.example' });
      return answer.answers;
    }),
    world.reopen(),
  ]);
  assert.deepEqual(late, ['203.0.113.3']);
  assert.match((await bound.ask('tcp', { host: '203.0.113.3', port: 80 })).text ?? '', /^internet/);

  assert.equal(await netdPid(), pid);
  assert.deepEqual(await world.network.forward('open', TCP_8080, mapping), mapping);
  held.socket.write('still here');
  await eventually('an echo on the old connection', () => held.said().endsWith('still here'));
  held.socket.destroy();
  await world.network.release('open');
  await world.network.release('bound');
});

test('a netd that is killed is started again and gets its whole configuration again', async () => {
  await using open = await world.guest('again');
  await using bound = await world.guest('rules', { enabled: true, allow: ['*.example'] });
  await open.ask('tcp-server', { host: '0.0.0.0', port: 8080, name: 'guest' });
  const mapping = await world.network.forward('again', TCP_8080);
  const before = await netdPid();
  await kill(before);
  // The runner continues meanwhile: slots are taken and released without netd.
  await world.network.take('meanwhile');
  await world.network.release('meanwhile');
  assert.deepEqual(
    await eventually(
      'names',
      async () => (await open.ask('resolve', { name: 'a1.example', wait: 500 })).answers,
    ),
    ['203.0.113.1'],
  );
  assert.notEqual(await netdPid(), before);
  assert.deepEqual(await bound.ask('resolve', { name: 'other.org' }), { error: 'ENOTFOUND' });
  assert.deepEqual(await bound.ask('resolve', { name: 'a4.example' }), { answers: ['203.0.113.4'] });
  (await dial(mapping[0]?.host_port ?? 0)).socket.destroy();
  assert.deepEqual(await world.network.forward('again', TCP_8080), mapping);
  await world.network.release('again');
  await world.network.release('rules');
});

test('ports that are published while netd is being killed are published by the next one', async () => {
  await using served = await world.guest('racing');
  await served.ask('tcp-server', { host: '0.0.0.0', port: 8080, name: 'guest' });
  process.kill(await netdPid(), 'SIGKILL');
  const mapping = await world.network.forward('racing', TCP_8080);
  (await dial(mapping[0]?.host_port ?? 0)).socket.destroy();
  await world.network.release('racing');
});

test('a netd that hangs is replaced, and no old port leads to the next holder of an address', async () => {
  await world.network.detach();
  await world.reopen({ netdReplyMs: 1_500 });
  await using served = await world.guest('hung');
  await served.ask('tcp-server', { host: '0.0.0.0', port: 8080, name: 'guest' });
  const mapping = await world.network.forward('hung', TCP_8080);
  const before = await netdPid();
  process.kill(before, 'SIGSTOP');
  await world.network.release('hung');
  const port = mapping[0]?.host_port ?? 0;
  // Before the release was done: another netd serves by now, and none has that port.
  const refused = connect({ host: '127.0.0.1', port });
  const [error] = (await once(refused, 'error')) as [NodeJS.ErrnoException];
  assert.equal(error.code, 'ECONNREFUSED');
  assert.notEqual(await eventually('a new netd', () => world.network.netdPid()), before);
  // A busy machine may take longer for an answer.
  await world.network.detach();
  await world.reopen();
});

test('a network is not released while a netd that has hung is being ended', async () => {
  await world.network.detach();
  await world.reopen({ netdReplyMs: 1_500 });
  await using served = await world.guest('stuck');
  await served.ask('tcp-server', { host: '0.0.0.0', port: 8080, name: 'guest' });
  await world.network.forward('stuck', TCP_8080);
  const hung = identifyProcess(await netdPid());
  const [lost, asked] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  firstBefore(HelperProcess.prototype, 'kill', async () => {
    lost.resolve();
    await asked.promise;
  });
  firstBefore(SlotPool.prototype, 'release', async () => assert.equal(isAlive(hung), false));
  try {
    process.kill(hung.pid, 'SIGSTOP');
    // It is told of another sandbox, and does not answer.
    await world.network.take('another');
    await lost.promise;
    const released = world.network.release('stuck');
    await turn();
    asked.resolve();
    await released;
  } finally {
    mock.restoreAll();
  }
  await world.network.release('another');
  // A busy machine may take longer for an answer.
  await world.network.detach();
  await world.reopen();
});

test('a port that another process took while netd was down is published when it is free again', async () => {
  await using served = await world.guest('robbed');
  await served.ask('tcp-server', { host: '0.0.0.0', port: 8080, name: 'guest' });
  const [mapping] = await world.network.forward('robbed', TCP_8080);
  const port = mapping?.host_port ?? 0;
  process.kill(await netdPid(), 'SIGKILL');
  const robber = createServer();
  await eventually('the port is taken', async () => {
    robber.listen(port, '127.0.0.1');
    return await once(robber, 'listening').then(() => true);
  });
  await eventually(
    'names',
    async () => (await served.ask('resolve', { name: 'a1.example', wait: 500 })).answers,
  );
  const closed = once(robber, 'close');
  robber.close();
  await closed;
  await eventually('the guest answers at its port', async () => {
    (await dial(port)).socket.destroy();
    return true;
  });
  await world.network.release('robbed');
});

test('DNS queries are redirected to another port of netd when its former one is taken', async () => {
  await using asking = await world.guest('asking');
  const table = `releap_${serviceTag(world.home)}`;
  const led = async (): Promise<[string, number]> => {
    const rules = await run('nft', ['list', 'chain', 'inet', table, 'resolver']);
    const match = /dnat ip to ([\d.]+):(\d+)/.exec(rules);
    return [match?.[1] ?? '', Number(match?.[2])];
  };
  const [address, port] = await led();
  process.kill(await netdPid(), 'SIGKILL');
  const robber = createSocket('udp4');
  await eventually('the port is taken', async () => {
    robber.bind(port, address);
    return await once(robber, 'listening').then(() => true);
  });
  assert.deepEqual(
    await eventually(
      'names',
      async () => (await asking.ask('resolve', { name: 'a1.example', wait: 500 })).answers,
    ),
    ['203.0.113.1'],
  );
  assert.notEqual((await led())[1], port);
  robber.close();
  await world.network.release('asking');
});

test('connections outlive the upgrade of netd, until their sandbox is released or the runner starts again', async () => {
  const published = async (vmId: string): Promise<number> => {
    const guest = await world.guest(vmId);
    guests.use(guest);
    await guest.ask('tcp-server', { host: '0.0.0.0', port: 8080, name: 'guest' });
    const [mapping] = await world.network.forward(vmId, TCP_8080);
    return mapping?.host_port ?? assert.fail();
  };
  const isOpen = async ({ socket, said }: Awaited<ReturnType<typeof dial>>, text: string): Promise<void> => {
    socket.write(text);
    await eventually(`${text} comes back`, () => said().endsWith(text));
  };
  await using guests = new AsyncDisposableStack();
  const port = await published('upgraded');
  await published('bystander');
  const held = await dial(port);
  const first = identifyProcess(await netdPid());
  const bound = await world.guest('bound', { enabled: true, allow: ['*.example'] });
  guests.use(bound);
  assert.deepEqual(await bound.ask('resolve', { name: 'a2.example' }), { answers: ['203.0.113.2'] });
  const beyond = async (text: string): Promise<void> => {
    assert.deepEqual(await bound.ask('tcp-echo', { host: '203.0.113.2', port: 80, text }), { text });
  };
  await beyond('before');
  await world.network.detach();
  await world.reopen({ netdVersion: 'newer' });
  const second = identifyProcess(await netdPid());
  assert.notEqual(second.pid, first.pid);
  const mapping = { vm_port: 8080, proto: 'tcp' as const, host_port: port };
  assert.deepEqual(await world.network.forward('upgraded', TCP_8080, [mapping]), [mapping]);
  const later = await dial(port);
  await isOpen(later, 'the new one');
  await isOpen(held, 'the old one');
  await beyond('after');
  assert.equal(isAlive(first), true);
  const cut = once(held.socket, 'close');
  await world.network.release('upgraded');
  await cut;
  assert.equal(isAlive(first), true);
  await beyond('still');
  await world.network.release('bound');
  await eventually('it has ended with its last connection', () => !isAlive(first));
  assert.equal(isAlive(second), true);

  const [bystander] = await world.network.forward('bystander', TCP_8080);
  const kept = await dial(bystander?.host_port ?? 0);
  await world.network.detach();
  await world.reopen();
  await isOpen(kept, 'still');
  await world.network.detach();
  // Nothing could tell it of releases any more.
  await world.reopen();
  await eventually('it has ended', () => !isAlive(second));
  for (const { socket } of [kept, later]) socket.destroy();
  await world.network.release('bystander');
});

test('netd ends with the service, and by itself when its folder goes', async () => {
  const other = await temporaryFolder('releap-netd-');
  const second = await Network.open(world.options({ dir: join(other, 'n'), identity: other, slots: 2 }));
  const left = identifyProcess((await second.netdPid()) ?? assert.fail());
  await second.detach();
  assert.equal(isAlive(left), true);
  await rm(join(other, 'n', 'netd'), { recursive: true });
  await eventually('it has ended', () => !isAlive(left));
  const third = await Network.open(world.options({ dir: join(other, 'n'), identity: other, slots: 2 }));
  const next = identifyProcess((await third.netdPid()) ?? assert.fail());
  await third.close();
  assert.equal(isAlive(next), false);
  await rm(other, { recursive: true, force: true });
});
