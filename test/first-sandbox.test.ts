import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import type { SandboxUsage, UsageHistory, UsageReport } from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import { leftovers } from '@releap/testing/leftovers';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';

describe('a sandbox from a built-in image, over the REST API', () => {
  let service: Service;
  let vm: { id: string; token: string };
  before(async () => {
    service = await sharedService();
    vm = await service.create({
      name: 'first',
      cpu: 1,
      mem_mib: 256,
      scratch_mib: 64,
      env: { GREETING: 'hello world', ODD: 'a"b\\c$d\nnew line' },
      ports: [{ vm_port: 8000 }],
    });
  });
  after(async () => {
    await service?.[Symbol.asyncDispose]();
  });

  test('process/execute answers exit code and output of a command in the micro-VM', async () => {
    assert.deepEqual(await service.exec(vm.id, 'echo it works; exit 3'), {
      exitCode: 3,
      result: 'it works\n',
    });
  });

  test('the guest runs its own kernel, and sees nothing of the host', async () => {
    const { result } = await service.exec(vm.id, 'uname -r; cat /proc/1/comm; ls /');
    assert.match(result, /cloud-amd64/);
    assert.doesNotMatch(result, /releap/i);
  });

  test('env is injected verbatim', async () => {
    const { result } = await service.exec(vm.id, 'printf "%s|%s" "$GREETING" "$ODD"');
    assert.equal(result, 'hello world|a"b\\c$d\nnew line');
  });

  test('mem_mib and vcpus are what the guest has', async () => {
    const { result } = await service.exec(
      vm.id,
      'grep MemTotal /proc/meminfo; grep -c ^processor /proc/cpuinfo',
    );
    const total = Number(/MemTotal:\s+(\d+) kB/.exec(result)?.[1]);
    assert.ok(total > 150 * 1024 && total <= 256 * 1024, result);
    assert.match(result, /\n1\n$/);
  });

  test('the metrics of its host count its start, on a socket that only root opens', async () => {
    const socketPath = join(service.home, 'run/runner.sock');
    const sent = request({ socketPath, path: '/metrics' }).end();
    const [response] = (await once(sent, 'response')) as [IncomingMessage];
    const metrics = await text(response);
    assert.match(metrics, /^releap_operation_duration_seconds_count\{operation="boot",outcome="ok"\} [1-9]/m);
    assert.match(metrics, /^releap_host_sandboxes\{state="running"\} [1-9]/m);
    assert.match(metrics, /^releap_network_slots\{state="held"\} [1-9]/m);
    assert.match(metrics, /^releap_disk_free_bytes\{folder="[^"]+"\} [1-9]/m);
    assert.match(metrics, /^releap_nodejs_eventloop_lag_p99_seconds /m);
  });

  test('a declared port is reached through port_map', async () => {
    await service.exec(vm.id, 'mkdir -p /www && echo from inside > /www/index.html && httpd -p 8000 -h /www');
    const { body } = await service.call<{
      port_map: { vm_port: number; host_port: number }[];
      host_ip: string;
    }>('GET', `/vms/${vm.id}`);
    const port = body.port_map.find((entry) => entry.vm_port === 8000)?.host_port;
    const answer = await fetch(`http://${body.host_ip}:${port}/index.html`);
    assert.equal(await answer.text(), 'from inside\n');
  });

  let used: SandboxUsage;
  test('what it uses is measured: CPU, a written file, a transferred file', async () => {
    const usage = async (): Promise<SandboxUsage> => {
      const { status, body } = await service.call<SandboxUsage>('GET', `/vms/${vm.id}/usage`);
      assert.equal(status, 200);
      return body;
    };
    const before = await usage();
    const mib = 2 ** 20;
    const burn = 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done';
    const write =
      'dd if=/dev/zero of=/written bs=1M count=16; dd if=/dev/zero of=/www/sent bs=1M count=4; sync';
    assert.equal((await service.exec(vm.id, `${burn}; ${write}`)).exitCode, 0);
    const { body } = await service.call<{ port_map: { host_port: number }[]; host_ip: string }>(
      'GET',
      `/vms/${vm.id}`,
    );
    const sent = await fetch(`http://${body.host_ip}:${body.port_map[0]?.host_port}/sent`);
    assert.equal((await sent.arrayBuffer()).byteLength, 4 * mib);
    used = await usage();
    const grown = (name: keyof SandboxUsage): number => Number(used[name]) - Number(before[name]);
    const shown = JSON.stringify({ before, used });
    // No processor counts to 300,000 in a shell in less, and no VMM takes more than all of this machine's time.
    assert.ok(grown('cpu_core_s') > 0.05, shown);
    assert.ok(used.cpu_core_s * 1000 <= used.duration_ms * availableParallelism() * 1.1, shown);
    for (const name of ['disk_write_bytes', 'disk_bytes'] as const)
      assert.ok(grown(name) >= 20 * mib && grown(name) < 64 * mib, `${name} ${shown}`);
    assert.ok(grown('net_tx_bytes') >= 4 * mib && grown('net_tx_bytes') < 6 * mib, shown);
    assert.ok(grown('net_rx_bytes') > 1_000 && grown('net_rx_bytes') < 2 * mib, shown);
    assert.ok(used.mem_bytes > 16 * mib && used.mem_bytes < 1024 * mib, shown);
    await service.exec(vm.id, 'rm /written /www/sent');
  });

  test('scratch_mib bounds what can be written, and a full disk is an error inside', async () => {
    const { result, exitCode } = await service.exec(
      vm.id,
      'dd if=/dev/zero of=/big bs=1M count=80 2>&1; rc=$?; rm /big; exit $rc',
    );
    assert.notEqual(exitCode, 0);
    assert.match(result, /No space left/);
    assert.equal((await service.exec(vm.id, 'echo still > /file && cat /file')).result, 'still\n');
  });

  test('files go in and come out byte for byte', async () => {
    const base = `${await service.toolboxUrl()}/${vm.id}/files`;
    const headers = { authorization: `Bearer ${vm.token}` };
    const bytes = Buffer.alloc(3_000_000, 'releap\0\xff', 'latin1');
    const up = await fetch(`${base}/upload?path=/data/in.bin`, { method: 'POST', headers, body: bytes });
    assert.ok(up.ok, await up.text());
    const down = await fetch(`${base}/download?path=/data/in.bin`, { headers });
    assert.equal(down.status, 200);
    assert.deepEqual(Buffer.from(await down.arrayBuffer()), bytes);
    assert.equal((await fetch(`${base}/download?path=/no/such`, { headers })).status, 404);
  });

  test('many files go in at once, served by the toolbox daemon of the system disk', async () => {
    const base = `${await service.toolboxUrl()}/${vm.id}`;
    const headers = { authorization: `Bearer ${vm.token}` };
    const form = new FormData();
    for (let index = 0; index < 20; index += 1) {
      form.append(`files[${index}].path`, `/many/${index}/ü`);
      form.append(`files[${index}].file`, new Blob([`content ${index}`]), 'ü');
    }
    const up = await fetch(`${base}/files/bulk-upload`, { method: 'POST', headers, body: form });
    assert.deepEqual([up.status, await up.json()], [200, { files: 20 }]);
    const { result } = await service.exec(vm.id, 'cat /many/19/*; cat /proc/*/comm | grep -c toolboxd');
    assert.equal(result, 'content 191\n');
    const { ports } = (await (await fetch(`${base}/port`, { headers })).json()) as { ports: number[] };
    assert.ok(Array.isArray(ports));
    assert.deepEqual(await (await fetch(`${base}/user-home-dir`, { headers })).json(), { dir: '/root' });
  });

  test('the toolbox needs a credential, and accepts the sandbox token for that sandbox only', async () => {
    const url = `${await service.toolboxUrl()}/${vm.id}/process/execute`;
    const post = (authorization?: string): Promise<Response> =>
      fetch(url, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          ...(authorization === undefined ? {} : { authorization }),
        },
        body: JSON.stringify({ command: 'true' }),
      });
    assert.equal((await post()).status, 401);
    assert.equal((await post('Bearer rlp_wrong')).status, 401);
    assert.equal((await post(`Bearer ${vm.token}`)).status, 200);
    const other = await service.call<{ vm_id: string; access_token: string }>('POST', '/vms', {
      image: 'busybox',
      mem_mib: 256,
      cpu: 1,
    });
    const foreign = await post(`Bearer ${other.body.access_token}`);
    assert.ok([401, 404].includes(foreign.status), String(foreign.status));
    await service.call('DELETE', `/vms/${other.body.vm_id}`);
    await service.waitFor(other.body.vm_id, 'deleted');
  });

  test('the console log is readable after the end, and DELETE leaves nothing of the sandbox', async () => {
    const before = await service.call('GET', `/vms/${vm.id}/logs`);
    assert.equal(before.status, 200);
    const gone = await service.call<{ status: string }>('DELETE', `/vms/${vm.id}`);
    assert.equal(gone.body.status, 'deleting');
    assert.equal((await service.waitFor(vm.id, 'deleted'))['status'], 'deleted');
    assert.equal((await service.call('GET', `/vms/${vm.id}/logs`)).status, 200);
  });

  test('what it has used is in its history and in the report of the project after its end', async () => {
    const sum = (list: readonly object[], name: string): number =>
      list.reduce((total, one) => total + Number((one as Record<string, unknown>)[name]), 0);
    const periods = async () =>
      (await service.call<UsageHistory>('GET', `/vms/${vm.id}/usage/history`)).body.periods;
    // The host sends its use piece by piece, the last one after its end: none may come between what is compared.
    const [item, minutes] = await eventually('its use is reported', async () => {
      const before = await periods();
      const { body } = await service.call<UsageReport>('GET', '/usage/report?resolution=d');
      const mine = body.items.filter((one) => one.sandbox_id === vm.id);
      const isWhole = sum(mine, 'net_tx_bytes') >= used.net_tx_bytes;
      return isWhole && isDeepStrictEqual(await periods(), before) && ([mine, before] as const);
    });
    for (const name of ['cpu_core_s', 'disk_write_bytes', 'net_rx_bytes', 'net_tx_bytes', 'duration_ms']) {
      const total = sum(item, name);
      assert.ok(total >= Number(used[name as keyof SandboxUsage]), `${name} ${total}`);
      assert.ok(Math.abs(sum(minutes, name) - total) < 1e-3, `${name}: minutes add up to hours and days`);
    }
    // Minutes are told by the time of day, and time is measured on the monotonic clock: they differ by some milliseconds.
    for (const { duration_ms: ms } of minutes) assert.ok(ms > 0 && ms <= 60_600, `${ms} ms in a minute`);
    assert.ok(sum(item, 'mem_gib_h') > 0);
    assert.equal(item[0]?.name, 'first');
    assert.equal((await service.call('GET', `/vms/${vm.id}/usage`)).status, 404);
  });

  test('SIGTERM stops the service and leaves nothing on the machine', async (t) => {
    await service.create({ mem_mib: 256, cpu: 1 });
    if (service.shared) return t.skip('asserted when the run stops the service that files share');
    assert.equal(await service.stop(), 0);
    assert.deepEqual(await leftovers(service.home), []);
  });
});
