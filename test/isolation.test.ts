import assert from 'node:assert/strict';
import { open, readFile, readlink, stat } from 'node:fs/promises';
import { createServer, type Server } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '@releap/testing/eventually';
import { leftovers } from '@releap/testing/leftovers';
import { processStatus } from '@releap/testing/processes';
import { type Service, uuidOf } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';

const SMALL = { cpu: 1, mem_mib: 256, scratch_mib: 64 };
const PAGE = 64 * 1024;

describe('a hostile sandbox', () => {
  let service: Service;
  let guest: { id: string; token: string };
  let neighbour: { id: string; address: string; hostPort: number };
  let bystander: Server;

  before(async () => {
    // It listens on every address: what keeps the guest out is the network, not where we listen.
    service = await sharedService();
    bystander = createServer((socket) => socket.on('error', () => undefined).end('host\n'));
    await new Promise<void>((done) => bystander.listen(0, '0.0.0.0', done));
    guest = await service.create({
      ...SMALL,
      mode: 'dedicated',
      persistent: true,
      env: { MARK: 'mark-of-the-guest' },
    });
    const { id } = await service.create({ ...SMALL, ports: [{ vm_port: 8000 }] });
    await service.exec(id, 'mkdir /www && echo secret > /www/index.html && httpd -p 8000 -h /www');
    const { body } = await service.call<{ vm_ip: string; port_map: { host_port: number }[] }>(
      'GET',
      `/vms/${id}`,
    );
    neighbour = { id, address: body.vm_ip, hostPort: body.port_map[0]?.host_port ?? 0 };
  });
  after(async () => {
    bystander?.close();
    await service?.[Symbol.asyncDispose]();
  });

  const sh = async (command: string): Promise<string> => (await service.exec(guest.id, command)).result;

  function hostAddresses(): string[] {
    return Object.values(networkInterfaces())
      .flatMap((addresses) => addresses ?? [])
      .filter(({ family, internal }) => family === 'IPv4' && !internal)
      .map(({ address }) => address);
  }

  test('cannot reach the host: API, gateway, declared ports, any other server', async () => {
    const toolbox = Number(new URL(await service.toolboxUrl()).port);
    const host = (bystander.address() as { port: number }).port;
    const addresses = hostAddresses();
    assert.ok(addresses.length > 0, 'this machine has no address to try');
    for (const address of addresses) {
      // From the machine itself they are all reached: what follows is not true for another reason.
      const status = await fetch(`http://${address}:${service.port}/healthz`).then(
        (answer) => answer.status,
        String,
      );
      // Another service beside this one may end meanwhile, and take its address along.
      if (hostAddresses().includes(address)) assert.equal(status, 200, address);
    }
    const reach = (target: string, seconds = 3): string =>
      `(nc -w ${seconds} ${target} < /dev/null > /dev/null 2>&1 && echo reached ${target}) &`;
    assert.equal(await sh(`httpd -p 9; ${reach('127.0.0.1 9', 60)} wait`), 'reached 127.0.0.1 9\n');
    const script = [...addresses, '172.16.0.1', '100.100.100.200']
      .flatMap((address) =>
        [service.port, toolbox, host, neighbour.hostPort, 22, 111].map((port) => `${address} ${port}`),
      )
      .map((target) => reach(target));
    assert.equal(await sh(`${script.join('\n')}\nwait`), '');
  });

  test('cannot reach another sandbox, nor the metadata address of a cloud', async () => {
    const { address } = neighbour;
    assert.equal(await (await fetch(`http://${address}:8000/`)).text(), 'secret\n');
    // Refused at once, and not by a program that fails for another reason: it says so.
    for (const target of [`${address} 8000`, '169.254.169.254 80'])
      assert.match(await sh(`nc -w 60 ${target} < /dev/null 2>&1`), /refused/);
  });

  test('has a log of what it was denied, in pages, that only its project reads', async () => {
    type List = { denied: { protocol: string; address?: string; port?: number; reason: string }[] } & {
      next_cursor: string | null;
    };
    const path = `/vms/${guest.id}/egress/denied`;
    const { status, body: whole } = await service.call<List>('GET', `${path}?limit=200`);
    assert.equal(status, 200);
    const reasons = (address: string, port: number): (string | undefined)[] =>
      whole.denied
        .filter((one) => one.protocol === 'tcp' && one.address === address && one.port === port)
        .map(({ reason }) => reason);
    assert.deepEqual(reasons('169.254.169.254', 80), ['reserved']);
    assert.deepEqual(reasons(neighbour.address, 8000), ['sandbox']);
    const paged: List['denied'] = [];
    for (let cursor: string | null | undefined; cursor !== null; ) {
      const query = cursor === undefined ? '' : `&cursor=${cursor}`;
      const { body } = await service.call<List>('GET', `${path}?limit=5${query}`);
      assert.ok(body.denied.length <= 5);
      paged.push(...body.denied);
      cursor = body.next_cursor;
    }
    assert.ok(paged.length >= whole.denied.length, `${paged.length} of ${whole.denied.length}`);
    assert.equal((await service.call('GET', `${path}?cursor=none`)).status, 400);
    const absent = '/vms/00000000-0000-4000-8000-000000000000/egress/denied';
    assert.equal((await service.call('GET', absent)).status, 404);
  });

  test('cannot send from an address or MAC that is not its own', async () => {
    const { address } = neighbour;
    const result = await sh(
      `ip address add ${address}/32 dev lo; ip address add 172.16.0.3/30 dev eth0 2>/dev/null; ` +
        `ping -c 1 -W 2 -I 172.16.0.3 172.16.0.1 > /dev/null 2>&1 && echo reached; ip address del 172.16.0.3/30 dev eth0 2>/dev/null; true`,
    );
    assert.equal(result, '');
    assert.equal(await (await fetch(`http://${address}:8000/`)).text(), 'secret\n');
  });

  test('is jailed in a VMM without privileges, alone in its namespaces, root folder and cgroup', async () => {
    const pids = await Promise.all([guest.id, neighbour.id].map((id) => service.vmm(id)));
    const [status, other] = await Promise.all(pids.map((pid) => processStatus(pid)));
    assert.ok(status && other);
    const ids = (field: string): string[] => (status.get(field) ?? '').split(/\s+/);
    const [uid] = ids('Uid');
    assert.ok(Number(uid) > 0x7000_0000);
    assert.deepEqual(ids('Uid'), [uid, uid, uid, uid]);
    assert.deepEqual(ids('Gid'), [uid, uid, uid, uid]);
    assert.ok(['', uid].includes(status.get('Groups')?.trim()));
    assert.notEqual(other.get('Uid'), status.get('Uid'));
    for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapAmb'])
      assert.equal(status.get(set), '0'.repeat(16), set);
    assert.equal(status.get('NoNewPrivs'), '1');
    assert.equal(status.get('Seccomp'), '2');

    const [pid, otherPid] = pids as [number, number];
    const link = (of: number | 'self', name: string): Promise<string> => readlink(`/proc/${of}/${name}`);
    // As the host sees it, `root` is a path in the mount namespace of the VMM, which has a root of its own.
    assert.equal(await link(pid, 'root'), '/vm');
    const jail = join(service.home, 'runner/vms', uuidOf(guest.id), 'jail');
    const [root, folder] = await Promise.all([`/proc/${pid}/root/.`, jail].map((path) => stat(path)));
    assert.deepEqual([root?.dev, root?.ino], [folder?.dev, folder?.ino]);
    assert.notEqual(await link(pid, 'ns/mnt'), await link('self', 'ns/mnt'));
    const spaces = await Promise.all(([pid, otherPid, 'self'] as const).map((of) => link(of, 'ns/net')));
    assert.equal(new Set(spaces).size, 3);
    // What a VMM that was taken over could still use.
    const environment = (await readFile(`/proc/${pid}/environ`, 'utf8')).split('\0');
    const names = environment.map((pair) => pair.split('=')[0] ?? '');
    assert.deepEqual(
      names.filter((name) => !['', 'LC_ALL', 'QEMU_MODULE_DIR'].includes(name)),
      [],
    );
  });

  /** Files of the cgroup that a process is in, by controller; one folder for all in version 2. */
  async function cgroup(
    pid: number,
  ): Promise<(controller: string, v1: string, v2: string) => Promise<string>> {
    const lines = (await readFile(`/proc/${pid}/cgroup`, 'utf8')).trim().split('\n');
    const mounts = (await readFile('/proc/self/mounts', 'utf8')).split('\n').map((line) => line.split(' '));
    return async (controller, v1, v2) => {
      const own = lines
        .map((line) => line.split(':'))
        .find(([, names]) => names?.split(',').includes(controller));
      const mount = mounts.find(([, , type, options]) =>
        own ? type === 'cgroup' && options?.split(',').includes(controller) : type === 'cgroup2',
      )?.[1];
      const path = own?.[2] ?? lines.find((line) => line.startsWith('0::'))?.slice(3);
      assert.ok(mount !== undefined && path !== undefined, `no cgroup of ${controller}`);
      assert.match(path, new RegExp(`releap-[0-9a-f]+(\\.service)?/.*${uuidOf(guest.id)}`));
      return (await readFile(join(mount, path, own ? v1 : v2), 'utf8')).trim();
    };
  }

  test('has the memory, processes and cores of its limits, and no more', async () => {
    const read = await cgroup(await service.vmm(guest.id));
    const memory = Number(await read('memory', 'memory.limit_in_bytes', 'memory.max')) / 2 ** 20;
    assert.ok(memory >= 256 && memory <= 256 + 512, `${memory} MiB`);
    assert.ok(Number(await read('pids', 'pids.max', 'pids.max')) <= 256);
    const used = async (): Promise<number> => {
      const text = await read('cpuacct', 'cpuacct.usage', 'cpu.stat').catch(() =>
        read('cpu', '', 'cpu.stat'),
      );
      const micros = /usage_usec (\d+)/.exec(text)?.[1];
      return micros === undefined ? Number(text) / 1e9 : Number(micros) / 1e6;
    };
    // Two loops on one core: what they use is counted by the kernel, over a time that is measured, not assumed.
    await sh(
      "for i in 1 2; do timeout 60 sh -c 'while :; do :; done' </dev/null >/dev/null 2>&1 & echo $! >> /loops; done; sleep 0.5",
    );
    // The time is never less than the one in which the use is counted, whichever process preempts this one.
    const at = performance.now();
    const cpu = await used();
    await sleep(2_000);
    await eventually('the loops run', async () => (await used()) - cpu > 0.1);
    const cores = (await used()) - cpu;
    const seconds = (performance.now() - at) / 1000;
    await sh('kill $(cat /loops)');
    assert.ok(cores / seconds <= 1.1, `${cores / seconds} cores`);
  });

  test('never sees the API key or its own access token', async () => {
    const { id, token } = guest;
    // Both have been used to reach it.
    for (const key of [token, service.bootstrap.api_key]) {
      const answer = await fetch(`${await service.toolboxUrl()}/${id}/process/execute`, {
        method: 'POST',
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        body: JSON.stringify({
          command: 'env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr "\\0" "\\n"',
        }),
      });
      const { result } = (await answer.json()) as { result: string };
      assert.match(result, /mark-of-the-guest/);
      assert.doesNotMatch(result, /rlpv?_/);
    }
    // What its image has, which was made before there was a token, would take the emulated guest a minute to read.
    const files = "find / -xdev -type f -mtime -2 -size -1000 ! -path '/proc/*' ! -path '/sys/*'";
    // The expression does not match itself.
    await sh("printf 'rlp%sabcdefgh12' _ > /tmp/bait");
    assert.equal(await sh(`${files} -exec grep -lE '[r]lpv?_[A-Za-z0-9]{8}' {} +`), '/tmp/bait\n');
    // Not even in memory that nothing shows any more: all that the VMM and its guest hold is looked through.
    const secrets = [
      token,
      service.bootstrap.api_key,
      await readFile(join(service.home, 'operator.token'), 'utf8'),
      await readFile(join(service.home, 'runner/credential'), 'utf8'),
    ];
    const found = await searchMemory(await service.vmm(id), [
      'mark-of-the-guest',
      ...secrets.map((text) => text.trim()),
    ]);
    assert.deepEqual(found, ['mark-of-the-guest']);
  });

  test('has its log of what it was denied after it has stopped, too', async () => {
    assert.equal((await service.call('POST', `/vms/${guest.id}/stop`)).status, 200);
    assert.equal((await service.waitFor(guest.id, 'stopped'))['status'], 'stopped');
    const { status, body } = await service.call<{ denied: { address?: string; reason: string }[] }>(
      'GET',
      `/vms/${guest.id}/egress/denied?limit=200`,
    );
    assert.equal(status, 200);
    assert.ok(
      body.denied.some(({ address, reason }) => address === neighbour.address && reason === 'sandbox'),
      JSON.stringify(body.denied),
    );
  });

  test('the service stops and leaves nothing', async (t) => {
    if (service.shared) return t.skip('asserted when the run stops the service that files share');
    assert.equal(await service.stop(), 0);
    assert.deepEqual(await leftovers(service.home), []);
  });
});

/** Which of these texts are anywhere in the writable memory of a process. */
async function searchMemory(pid: number, texts: string[]): Promise<string[]> {
  const found = new Set<string>();
  const overlap = Math.max(...texts.map((text) => text.length));
  await using memory = await open(`/proc/${pid}/mem`, 'r');
  const buffer = Buffer.alloc(PAGE * 64 + overlap);
  for (const line of (await readFile(`/proc/${pid}/maps`, 'utf8')).split('\n')) {
    const range = /^([0-9a-f]+)-([0-9a-f]+) rw/.exec(line);
    if (range === null) continue;
    const end = Number.parseInt(range[2] as string, 16);
    for (let at = Number.parseInt(range[1] as string, 16); at < end; at += PAGE * 64) {
      const { bytesRead } = await memory
        .read(buffer, 0, Math.min(buffer.length, end - at), at)
        .catch(() => ({ bytesRead: 0 }));
      const piece = buffer.subarray(0, bytesRead);
      for (const text of texts) if (piece.includes(text)) found.add(text);
    }
  }
  return texts.filter((text) => found.has(text));
}
