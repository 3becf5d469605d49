import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { type MachineHost, startMachineHost } from '@releap/testing/machine-host';
import { until } from '@releap/testing/world';
import { type Relay, sendJson, startRelay } from './relay.ts';
import { json, rlp, rlpHere } from './rlp.ts';
import { but, newProject, type Project, Scripts } from './world.ts';

let host: MachineHost;
const scripts = new Scripts();
before(async () => {
  host = await startMachineHost({}, { script: scripts.script });
});
after(() => host[Symbol.asyncDispose]());

type Sandbox = Record<string, unknown>;

/** A relay to a service that lists sandboxes as this one does not. */
async function relayedList(project: Project, change: (vm: Sandbox) => Sandbox): Promise<Relay> {
  const relay = await startRelay({ url: project.url });
  relay.answers.set('GET /vms', async (_request, response) => {
    const { vms, next_cursor } = (await project.call('GET', '/vms')).body as {
      vms: Sandbox[];
      next_cursor: null;
    };
    sendJson(response, 200, { vms: vms.map(change), next_cursor });
  });
  return relay;
}

describe('rlp ps', () => {
  test('lists all pages, newest first, without the deleted ones', async () => {
    const project = await newProject(host.world);
    for (const name of ['one', 'two', 'three', 'gone']) await project.create(name);
    await using relay = await startRelay({ url: project.url });
    relay.pageSize = 2;
    const ps = (...args: string[]) => rlpHere({ url: relay.url, key: project.key }, ['ps', ...args]);
    assert.equal((await ps('-q')).stdout.trim().split('\n').length, 4);
    assert.equal((await project.rlp(['rm', '--wait', 'gone'])).code, 0);
    const { stdout, code } = await ps();
    assert.equal(code, 0);
    assert.ok(relay.calls.length > 1, 'it was read in several pages');
    const names = stdout.split('\n').map((line) => line.split(/\s+/)[1]);
    assert.deepEqual(names, ['NAME', 'three', 'two', 'one', undefined]);
    assert.equal((JSON.parse((await ps('--json')).stdout) as unknown[]).length, 3);
  });

  test('shows stopped and failed ones with -a alone, paused ones always', async () => {
    const project = await newProject(host.world);
    for (const name of ['running', 'paused', 'stopped', 'failed']) await project.create(name);
    await using relay = await relayedList(project, (vm) => ({ ...vm, status: vm['name'] }));
    const ps = (...args: string[]) => rlpHere({ url: relay.url, key: project.key }, ['ps', '-q', ...args]);
    assert.equal((await ps()).stdout.trim().split('\n').length, 2);
    assert.equal((await ps('-a')).stdout.trim().split('\n').length, 4);
  });

  test('shows ports, and no control characters of tenants', async () => {
    const project = await newProject(host.world);
    scripts.set(
      'exposed',
      but('running', (assignment, runner) =>
        runner.observe(assignment, {
          status: 'running',
          vm_ip: '172.16.0.2',
          host_ip: '10.0.0.1',
          port_map: [{ vm_port: 80, proto: 'tcp', host_port: 31_000 }],
        }),
      ),
    );
    await project.create('exposed', { ports: [{ vm_port: 80, proto: 'tcp' }] });
    // This service takes no such name; another may have.
    await using relay = await relayedList(project, (vm) => ({ ...vm, name: 'evil\u001b]0;title\u0007' }));
    const { stdout } = await rlpHere({ url: relay.url, key: project.key }, ['ps']);
    assert.match(stdout, /10\.0\.0\.1:31000->80\/tcp/);
    assert.match(stdout, /evil\?\]0;title\?/);
    // oxlint-disable-next-line no-control-regex -- control characters are what is looked for
    assert.doesNotMatch(stdout, /[\u001b\u0007]/);
  });

  test('in a pipe has no colours and ends quietly when the reader goes', async () => {
    const project = await newProject(host.world);
    await project.create('web');
    const outcome = await rlp(project, ['ps'], { started: (child) => child.stdout?.destroy() });
    assert.deepEqual(outcome, { code: 0, stdout: '', stderr: '' });
  });
});

describe('rlp rm', () => {
  test('deletes each, continues after an unknown one, and reports', async () => {
    const project = await newProject(host.world);
    const [a, b] = [await project.create('a'), await project.create('b')];
    const outcome = await project.rlp(['rm', 'a', 'nobody', 'b']);
    assert.equal(outcome.code, 4);
    assert.equal(outcome.stdout, `${a.id}\n${b.id}\n`);
    assert.match(outcome.stderr, /nobody/);
  });

  test('-f makes unknown ones no error, --wait waits until they are gone', async () => {
    const project = await newProject(host.world);
    const { id } = await project.create('a');
    assert.equal((await project.rlp(['rm', '-f', 'nobody'])).code, 0);
    assert.equal((await project.rlp(['rm', '--wait', 'a'])).code, 0);
    assert.equal(await project.status(id), 'deleted');
  });
});

describe('rlp logs', () => {
  test('prints the entrypoint, or the console', async () => {
    const project = await newProject(host.world);
    const { uuid } = await project.create('web');
    host.log(uuid, 'entrypoint').write(Buffer.from('hello\n'));
    host.log(uuid, 'console').write(Buffer.from('Linux version\n'));
    assert.equal((await project.rlp(['logs', 'web'])).stdout, 'hello\n');
    assert.equal((await project.rlp(['logs', '--console', 'web'])).stdout, 'Linux version\n');
    assert.equal(json(await project.rlp(['logs', '--json', 'web']))['text'], 'hello\n');
  });

  test('-f continues where a response ended, without repeating output, until the sandbox has ended', async () => {
    const project = await newProject(host.world);
    const { id, uuid } = await project.create('web');
    const write = (text: string): void => host.log(uuid, 'entrypoint').write(Buffer.from(text));
    write('one\n');
    let printed = '';
    const following = project.rlp(['logs', '-f', 'web'], { onStdout: (text) => (printed = text) });
    await until(() => printed === 'one\n');
    // As when the runner starts again: the answer ends, and the next one begins at the beginning of the log.
    for (const [text, all] of [
      ['two\n', 'one\ntwo\n'],
      ['three\n', 'one\ntwo\nthree\n'],
    ] as const) {
      await host.closeLog(uuid, 'entrypoint');
      write(text);
      await until(() => printed === all);
    }
    assert.equal((await project.call('DELETE', `/vms/${id}`)).status, 200);
    await host.closeLog(uuid, 'entrypoint');
    assert.deepEqual(await following, { code: 0, stdout: 'one\ntwo\nthree\n', stderr: '' });
  });

  test('-f waits for a log that is not there yet', async () => {
    const project = await newProject(host.world);
    scripts.set(
      'late',
      but('running', () => undefined),
    );
    const { stdout } = await project.rlp(['run', 'busybox', '--name', 'late', '--no-wait']);
    await using relay = await startRelay({ url: project.url });
    let printed = '';
    const following = rlpHere({ url: relay.url, key: project.key }, ['logs', '-f', 'late'], {
      onStdout: (text) => (printed = text),
    });
    const id = stdout.trim();
    const reads = (): number => relay.calls.filter((call) => call.endsWith('/entrypoint-logs')).length;
    // The second time means that the first found none.
    await until(() => reads() > 1);
    const assignment = await host.runner.assigned(project.uuidOf(id));
    host.log(assignment.vm_id, 'entrypoint').write(Buffer.from('late\n'));
    host.runner.observe(assignment, { status: 'running', vm_ip: '172.16.0.2' });
    await until(() => printed === 'late\n');
    assert.equal((await project.call('DELETE', `/vms/${id}`)).status, 200);
    await host.closeLog(assignment.vm_id, 'entrypoint');
    assert.deepEqual(await following, { code: 0, stdout: 'late\n', stderr: '' });
  });

  test('Ctrl-C ends -f', async () => {
    const project = await newProject(host.world);
    const { uuid } = await project.create('web');
    host.log(uuid, 'entrypoint').write(Buffer.from('on\n'));
    const outcome = await rlp(project, ['logs', '-f', 'web'], {
      started: (child) => child.stdout?.once('data', () => child.kill('SIGINT')),
    });
    assert.equal(outcome.code, 130);
  });
});

describe('rlp usage', () => {
  const counters = { disk_read_bytes: 0, disk_write_bytes: 2048, net_rx_bytes: 3, net_tx_bytes: 4 };
  const start = '2026-01-31T12:00:00.000Z';

  test('shows the averages of a sandbox, its counters now, and the report of the project from all pages', async () => {
    const project = await newProject(host.world);
    const { id } = await project.create('web');
    await using relay = await startRelay({ url: project.url });
    const history = {
      start,
      duration_ms: 30_000,
      cpu_core_s: 15,
      mem_gib_s: 30,
      disk_peak_bytes: 4096,
      ...counters,
    };
    const asked: URL[] = [];
    const answer = (path: string, body: (url: URL) => object): void => {
      relay.answers.set(`GET ${path}`, (request, response) => {
        const url = new URL(request.url ?? '', relay.url);
        asked.push(url);
        sendJson(response, 200, body(url));
      });
    };
    answer(`/vms/${id}/usage/history`, () => ({ available: true, sandbox_id: id, periods: [history] }));
    answer(`/vms/${id}/usage`, () => ({
      sandbox_id: id,
      at: start,
      duration_ms: 90_000,
      cpu_core_s: 4.25,
      mem_bytes: 2 ** 30,
      disk_bytes: 4096,
      ...counters,
    }));
    answer('/usage/report', (url) => {
      const isLast = url.searchParams.get('cursor') === 'next';
      const item = { sandbox_id: id, name: isLast ? null : 'we\u001bb', start, duration_ms: 3_600_000 };
      return {
        available: true,
        items: [{ ...item, cpu_core_s: 9, mem_gib_h: 0.5, disk_peak_bytes: 4096, ...counters }],
        next_cursor: isLast ? null : 'next',
      };
    });
    const usage = async (...args: string[]) => {
      const done = await rlpHere({ url: relay.url, key: project.key }, ['usage', ...args]);
      assert.equal(done.code, 0, done.stderr);
      return done.stdout;
    };
    assert.match(
      await usage('web', '--by', 'hour', '--since', '2h'),
      /2026-01-31 12:00 +0\.50 +1024 MiB +4 KiB +0 B +2 KiB/,
    );
    const query = asked[0]?.searchParams;
    assert.equal(query?.get('resolution'), 'h');
    const since = Date.now() - Date.parse(query?.get('from') ?? '');
    assert.ok(since >= 2 * 3_600_000 && since < 3 * 3_600_000);
    assert.match(await usage('web', '--live'), /90 s +4\.3 s +1024 MiB +4 KiB/);
    const report = await usage('--by', 'day');
    assert.match(report, /we\?b +9\.0 s +0\.500 GiBh/);
    assert.ok(report.includes(id));
    assert.equal((JSON.parse(await usage('--json')) as { items: unknown[] }).items.length, 2);
  });

  test('says what is allowed, and when nothing is recorded', async () => {
    const project = await newProject(host.world);
    await project.create('web');
    for (const args of [['web', '--by', 'day'], ['--by', 'minute'], ['--live'], ['--since', 'x']])
      assert.equal((await project.rlp(['usage', ...args])).code, 2, args.join(' '));
    const none = await project.rlp(['usage', 'web']);
    assert.deepEqual([none.code, none.stdout.trim().split('\n').length], [0, 1]);
    await using relay = await startRelay({ url: project.url });
    relay.answers.set('GET /usage/report', (_request, response) =>
      sendJson(response, 200, { available: false, items: [] }),
    );
    const off = await rlpHere({ url: relay.url, key: project.key }, ['usage']);
    assert.match(off.stdout, /does not record/);
  });
});

describe('rlp net denied', () => {
  test('lists what was denied, with a reason in words, from all pages', async () => {
    const project = await newProject(host.world);
    const { id } = await project.create('web');
    await using relay = await startRelay({ url: project.url });
    const last_at = new Date().toISOString();
    const pages = [
      { protocol: 'tcp', address: '203.0.113.2', port: 443, name: 'evil.example', reason: 'name_mismatch' },
      { protocol: 'dns', name: 'tunnel\u001b.evil', reason: 'not_allowed' },
    ];
    relay.answers.set(`GET /vms/${id}/egress/denied`, (request, response) => {
      const page = request.url?.includes('cursor=next') === true ? 1 : 0;
      const denied = [{ ...pages[page], count: 7, last_at }];
      sendJson(response, 200, { denied, next_cursor: page === 0 ? 'next' : null });
    });
    const denied = (...args: string[]) =>
      rlpHere({ url: relay.url, key: project.key }, [...args, 'net', 'denied', 'web']);
    const { code, stdout } = await denied();
    assert.equal(code, 0);
    assert.match(stdout, /7 +tcp +evil\.example \(203\.0\.113\.2:443\) +the address was not resolved/);
    assert.match(stdout, /7 +dns +tunnel\?\.evil +not in the egress policy/);
    assert.equal((JSON.parse((await denied('--json')).stdout) as unknown[]).length, 2);
    // This project's own service has no network for a sandbox that a test plays.
    const none = await project.rlp(['net', 'denied', 'web']);
    assert.equal(none.code, 1);
    assert.match(none.stderr, /no host has a log of what it was denied/);
  });
});
