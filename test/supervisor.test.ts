import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile, stat } from 'node:fs/promises';
import { createServer } from 'node:net';
import path from 'node:path';
import { describe, test } from 'node:test';
import { promisify } from 'node:util';
import { signInByDevice } from '@releap/testing/browser';
import { eventually } from '@releap/testing/eventually';
import { leftovers } from '@releap/testing/leftovers';
import { partPids, type Role } from '@releap/testing/processes';
import { REPO, Service } from '@releap/testing/service';

const RLP = path.join(REPO, 'packages/cli/bin/rlp');
const PARTS: Role[] = ['control', 'gateway', 'postgres', 'runner'];
const root = process.getuid?.() === 0;

/** Runs a start that must fail, to its end. */
async function failedStart(service: Service, env: Record<string, string> = {}): Promise<number | null> {
  const child = service.spawn(env);
  const [code] = (await once(child, 'close')) as [number | null];
  return code;
}

describe('the all-in-one service', { skip: root ? false : 'needs root' }, () => {
  test('starts, brings back what is killed, survives its own death, and leaves nothing behind', async (t) => {
    await using service = await Service.start({ RELEAP_PREVIEW_TLS: 'dev', RELEAP_PREVIEW_TLS_PORT: '0' });
    const vms = async (): Promise<number> => (await service.call('GET', '/vms')).status;

    await t.test('runs each part as a process of its own', async () => {
      assert.deepEqual(Object.keys(await partPids(service.home)).sort(), PARTS);
    });

    await t.test('writes bootstrap.json for its owner alone, with a key that works', async () => {
      const { base_url: base, compat_url: compat, image } = service.bootstrap;
      assert.equal(base, `http://127.0.0.1:${service.port}`);
      assert.equal(compat, `${base}/compat`);
      assert.equal(image, 'busybox');
      for (const file of ['bootstrap.json', 'identity-keys.json', 'operator.token', 'runner/credential']) {
        assert.equal((await stat(path.join(service.home, file))).mode & 0o777, 0o600);
      }
      assert.equal(await vms(), 200);
    });

    await t.test(
      'signs people in out of the box: rlp login by device code, then /me and a first key',
      async () => {
        const { base_url: base, issuer } = service.bootstrap;
        const config = (await (await fetch(`${base}/auth/config`)).json()) as { issuer: string };
        assert.equal(config.issuer, issuer);
        assert.match(issuer ?? '', /^http:\/\/127\.0\.0\.1:\d+$/);
        assert.ok(service.output.includes(issuer ?? ''), 'the banner names it');
        const { access_token: token } = await signInByDevice(issuer ?? '', {
          email: 'ada@example.org',
          name: 'Ada',
        });
        const call = async (
          method: string,
          where: string,
          body?: object,
        ): Promise<Record<string, string>> => {
          const response = await fetch(base + where, {
            method,
            headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
            ...(body === undefined ? {} : { body: JSON.stringify(body) }),
          });
          const text = await response.text();
          assert.equal(response.status, 200, text);
          return JSON.parse(text) as Record<string, string>;
        };
        assert.equal((await call('GET', '/me'))['email'], 'ada@example.org');
        const org = await call('POST', '/orgs', { name: 'Analytical Engines' });
        const project = await call('POST', `/orgs/${org['id']}/projects`, { name: 'notes' });
        const key = await call('POST', `/projects/${project['id']}/api-keys`);
        const vms = await fetch(`${base}/vms`, { headers: { authorization: `Bearer ${key['token']}` } });
        assert.deepEqual(await vms.json(), { vms: [], next_cursor: null });
      },
    );

    await t.test(
      'serves previews with a certificate of its development CA, whose root rlp prints',
      async () => {
        const rlp = async (...args: string[]): Promise<string> => {
          const env = { ...process.env, RELEAP_HOME: service.home };
          return (await promisify(execFile)(RLP, args, { env })).stdout;
        };
        const root = path.join(service.home, 'root.pem');
        assert.equal(await rlp('preview-ca', '--output', root), `${root}\n`);
        assert.equal(await rlp('preview-ca'), await readFile(root, 'utf8'));
        const url =
          /https:\/\/\S*preview\.localhost:\d+/.exec(service.output)?.[0] ?? assert.fail(service.output);
        const { port } = new URL(url);
        const curl = async (...options: string[]): Promise<string> =>
          (
            await promisify(execFile)('curl', [
              '-s',
              ...options,
              `https://8080-${'a'.repeat(26)}.preview.localhost:${port}/`,
            ])
          ).stdout;
        assert.match(await curl('--cacert', root), /^\{"error":/);
        await assert.rejects(curl(), { code: 60 }, 'curl does not trust it by itself');
        const doctor = await rlp('doctor', '--no-trial').catch((error: { stdout: string }) => error.stdout);
        assert.match(doctor, /Certificate +previews below preview\.localhost \(dev\): expires 20\d\d-/);
        const socket = path.join(service.home, 'run/gateway.sock');
        const { stdout } = await promisify(execFile)('curl', [
          '-s',
          '--unix-socket',
          socket,
          'http://gateway/metrics',
        ]);
        const expiry = /^releap_preview_certificate_expiry_timestamp_seconds (\S+)$/m.exec(stdout)?.[1];
        assert.ok(Number(expiry) * 1000 > Date.now());
        assert.match(stdout, /^releap_function_instances\{state="serving"\} 0$/m);
      },
    );

    await t.test('refuses a second server on its home, and names the process that has it', async () => {
      assert.equal(await failedStart(service, { RELEAP_PORT: '0' }), 1);
      assert.match(
        service.output,
        new RegExp(`is in use by another server \\(process ${service.pid}, port ${service.port}\\)`),
      );
      assert.equal(await vms(), 200);
    });

    for (const role of PARTS) {
      await t.test(`starts ${role} again when it is killed`, async () => {
        await service.kill9(role);
        await eventually('an answer', async () => ((await vms()) === 200 ? true : undefined));
      });
    }

    await t.test(
      'its parts end when it is killed, and the next start continues with the same key',
      async () => {
        const { api_key: key } = service.bootstrap;
        await service.kill();
        // Straight away: the parts may still be ending.
        await service.boot({ RELEAP_KEEP_SANDBOXES: '1' });
        assert.equal(service.bootstrap.api_key, key);
        assert.deepEqual(Object.keys(await partPids(service.home)).sort(), PARTS);
      },
    );

    await t.test('leaves sandboxes to the next start at SIGTERM, with RELEAP_KEEP_SANDBOXES', async () => {
      const { id } = await service.create();
      const pid = await service.vmm(id);
      assert.equal(await service.stop(), 0, service.lastWords);
      assert.deepEqual(await partPids(service.home), {});
      assert.ok(process.kill(pid, 0), 'its VMM runs');
      await service.boot();
      assert.equal((await service.exec(id, 'echo still here')).result, 'still here\n');
      assert.equal(await service.vmm(id), pid);
    });

    await t.test('stops cleanly on SIGTERM', async () => {
      assert.equal(await service.stop(), 0, service.lastWords);
      assert.deepEqual(await leftovers(service.home), []);
      assert.deepEqual(await readdir(path.join(service.home, 'postgres/socket')), []);
    });
  });
});

describe('a start that cannot be', { skip: root ? false : 'needs root' }, () => {
  test('names the port that another program holds', async () => {
    await using service = await Service.prepare();
    const other = createServer().listen(service.port, '127.0.0.1');
    await once(other, 'listening');
    try {
      assert.equal(await failedStart(service), 1);
    } finally {
      other.close();
    }
    assert.match(service.output, new RegExp(`RELEAP_PORT=${service.port}: another program listens`));
  });

  test('names an address that this machine does not have', async () => {
    await using service = await Service.prepare();
    assert.equal(await failedStart(service, { RELEAP_HOST: '192.0.2.1', RELEAP_PLAIN_HTTP: '1' }), 1);
    assert.match(service.output, /RELEAP_HOST=192\.0\.2\.1: this machine has no such address/);
  });

  test('names the ways to keep API keys off the internet in the clear', async () => {
    await using service = await Service.prepare();
    assert.equal(await failedStart(service, { RELEAP_HOST: '8.8.8.8' }), 2);
    assert.match(
      service.output,
      /RELEAP_HOST=8\.8\.8\.8: .* the API and the gateway over plain HTTP, .*RELEAP_HOST=127\.0\.0\.1.*RELEAP_PUBLIC_URL and RELEAP_TOOLBOX_URL.*RELEAP_PLAIN_HTTP=1/,
    );
    assert.deepEqual(await leftovers(service.home), []);
  });

  test('names every value that is not allowed', async () => {
    await using service = await Service.prepare();
    assert.equal(await failedStart(service, { RELEAP_PORT: 'http', RELEAP_LOG_LEVEL: 'all' }), 2);
    assert.match(
      service.output,
      /RELEAP_PORT=http: must be a whole number from 0 to 65535\n\s+RELEAP_LOG_LEVEL=all: must be one of/,
    );
  });

  test('fails with the reason of the part that cannot start', async () => {
    await using service = await Service.prepare();
    // A host without a verdict on KVM is in the middle of its trial when it is to end.
    const RELEAP_CACHE = path.join(service.home, 'cache');
    const DATABASE_URL = 'postgres://nobody@127.0.0.1:1/none';
    assert.equal(await failedStart(service, { DATABASE_URL, RELEAP_CACHE }), 1);
    assert.match(service.output, /releap: control cannot start: .*ECONNREFUSED/);
    assert.deepEqual(await leftovers(service.home), []);
  });
});
