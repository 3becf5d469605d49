import assert from 'node:assert/strict';
import { readFile, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, test } from 'node:test';
import { formatJoinToken } from '@releap/contract/join-token';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import * as fc from 'fast-check';
import { previewUrlOf } from '../src/config/config.ts';
import { configurationDocument } from '../src/config/document.ts';
import { settingsFile, withSettings, writeSettings } from '../src/config/settings-file.ts';
import { assertEncrypted, plainHttpWarning } from '../src/config/plain-http.ts';
import { type VariableName, VARIABLES } from '../src/config/variables.ts';
import { ConfigError, loadConfig } from '../src/index.ts';

function problems(env: Record<string, string>): readonly string[] {
  try {
    loadConfig(env);
    return [];
  } catch (error) {
    assert.ok(error instanceof ConfigError);
    return error.problems;
  }
}

describe('the configuration', () => {
  test('needs nothing', () => {
    const config = loadConfig({});
    assert.equal(config.home, '/var/lib/releap');
    assert.equal(config.cacheDir, '/var/lib/releap/cache');
    assert.equal(config.port, 7070);
    assert.equal(config.host, '127.0.0.1');
    assert.equal(config.databaseUrl, undefined);
    assert.deepEqual(config.builtinImages, ['busybox', 'debian']);
    assert.deepEqual(config.region, { id: 'local' });
  });

  test('lets other machines reach the runner only where it is told an address', () => {
    assert.equal(loadConfig({}).data, undefined);
    assert.deepEqual(loadConfig({ RELEAP_DATA_HOST: '10.0.0.2' }).data, { host: '10.0.0.2', port: 7076 });
    const all = { RELEAP_DATA_HOST: '0.0.0.0', RELEAP_DATA_PORT: '9000' };
    assert.match(problems(all)[0] ?? '', /RELEAP_DATA_URL must say/);
    assert.deepEqual(loadConfig({ ...all, RELEAP_DATA_URL: 'https://host.example:9001/' }).data, {
      host: '0.0.0.0',
      port: 9000,
      url: 'https://host.example:9001',
    });
    assert.match(problems({ RELEAP_DATA_URL: 'https://10.0.0.2:1' })[0] ?? '', /RELEAP_DATA_HOST must say/);
    assert.equal(problems({ RELEAP_DATA_HOST: '10.0.0.2', RELEAP_DATA_URL: 'http://10.0.0.2:1' }).length, 1);
  });

  test('takes from a join token what it says of the control plane', () => {
    const token = {
      controlUrl: 'https://10.0.0.1:7072',
      fingerprint: '5b'.repeat(32),
      secret: `rlpj_${'s'.repeat(43)}`,
    };
    const text = formatJoinToken(token);
    const config = loadConfig({ RELEAP_JOIN_TOKEN: text });
    assert.deepEqual(
      [config.controlUrl, config.controlFingerprint, config.tokens.join],
      [token.controlUrl, token.fingerprint, token.secret],
    );
    const other = loadConfig({ RELEAP_JOIN_TOKEN: text, RELEAP_CONTROL_URL: 'http://127.0.0.1:7072' });
    assert.deepEqual(
      [other.controlUrl, other.controlFingerprint, other.tokens.join],
      ['http://127.0.0.1:7072', undefined, token.secret],
    );
    const [problem = ''] = problems({ RELEAP_JOIN_TOKEN: text.slice(0, -3) });
    assert.match(problem, /^RELEAP_JOIN_TOKEN=\*\*\*: the join token is incomplete/);
  });

  test('has the settings of the home where the environment says nothing', async () => {
    const home = await temporaryFolder('releap-settings-');
    assert.deepEqual(withSettings({ RELEAP_HOME: home }), { RELEAP_HOME: home });
    await writeSettings(home, { RELEAP_PORT: '8070', RELEAP_CONTROL_URL: 'https://10.0.0.1:7072' });
    assert.equal((await stat(settingsFile(home))).mode & 0o777, 0o600);
    const env = { RELEAP_HOME: home, RELEAP_PORT: '9070', RELEAP_CONTROL_URL: '' };
    const { port, controlUrl } = loadConfig(withSettings(env));
    assert.deepEqual([port, controlUrl], [9070, 'https://10.0.0.1:7072']);
    for (const line of ['RELEAP_HOME=/elsewhere', 'PATH=/bin', 'nonsense', 'RELEAP_PORT']) {
      await writeFile(settingsFile(home), `# a comment\n\n${line}\n`);
      assert.throws(() => withSettings(env), /runner\.env, line 3: must be NAME=VALUE/, line);
    }
  });

  test('takes an empty variable for an absent one', () => {
    assert.deepEqual(loadConfig({ RELEAP_PORT: '', DATABASE_URL: '' }), loadConfig({}));
  });

  test('has the classes of hardware that a machine declares', () => {
    assert.deepEqual(loadConfig({}).classes, {});
    assert.deepEqual(loadConfig({ RELEAP_CPU_TYPE: 'zen4', RELEAP_DISK_CLASS: 'nvme' }).classes, {
      cpu_type: 'zen4',
      disk_class: 'nvme',
    });
    assert.match(problems({ RELEAP_NETWORK_CLASS: '10 G' }).join(), /RELEAP_NETWORK_CLASS.*a slug: a-z/);
  });

  test('appends the path of the toolbox to the base URL of the gateway, once', () => {
    for (const base of [
      'https://gw.example.org',
      'https://gw.example.org/',
      'https://gw.example.org/toolbox',
    ]) {
      assert.equal(loadConfig({ RELEAP_TOOLBOX_URL: base }).toolboxUrl, 'https://gw.example.org/toolbox');
    }
  });

  test('derives paths from the home and cuts slashes off base URLs', () => {
    const config = loadConfig({ RELEAP_HOME: '/srv/a/', RELEAP_PUBLIC_URL: 'https://api.example.org/' });
    assert.equal(config.cacheDir, '/srv/a/cache');
    assert.equal(config.keyFile, '/srv/a/keys.json');
    assert.equal(config.publicUrl, 'https://api.example.org');
  });

  test('stores in a folder of the home, another one, or a bucket', () => {
    assert.deepEqual(loadConfig({ RELEAP_HOME: '/srv/a' }).store, { type: 'folder', path: '/srv/a/store' });
    assert.deepEqual(loadConfig({ RELEAP_STORE: '/mnt/shared/' }).store, {
      type: 'folder',
      path: '/mnt/shared',
    });
    const keys = { RELEAP_STORE_S3_ACCESS_KEY_ID: 'id', RELEAP_STORE_S3_SECRET_ACCESS_KEY: 'secret' };
    assert.deepEqual(
      loadConfig({
        RELEAP_HOME: '/srv/a',
        RELEAP_STORE: 's3://bucket/some/prefix/',
        RELEAP_STORE_S3_ENDPOINT: 'https://s3.example.org/',
        ...keys,
      }).store,
      {
        type: 's3',
        bucket: 'bucket',
        prefix: 'some/prefix',
        endpoint: 'https://s3.example.org',
        region: 'us-east-1',
        credentials: { accessKeyId: 'id', secretAccessKey: 'secret' },
        spoolFolder: '/srv/a/store-spool',
      },
    );
    const file = { RELEAP_STORE: 's3://bucket', RELEAP_STORE_S3_CREDENTIALS_FILE: '/etc/s3.json' };
    const { store } = loadConfig(file);
    assert.deepEqual(store.type === 's3' && store.credentials, { file: '/etc/s3.json' });
    const [half] = problems({ RELEAP_STORE: 's3://bucket', RELEAP_STORE_S3_ACCESS_KEY_ID: 'id' });
    assert.match(half ?? '', /must be set together/);
    assert.match(problems({ ...file, ...keys })[0] ?? '', /exclude each other/);
    assert.match(problems({ RELEAP_STORE: 's3://' })[0] ?? '', /s3:\/\/bucket\/prefix/);
  });

  test('reads lists, and none as an empty one', () => {
    assert.deepEqual(loadConfig({ RELEAP_BUILTIN_IMAGES: 'busybox' }).builtinImages, ['busybox']);
    assert.deepEqual(loadConfig({ RELEAP_BUILTIN_IMAGES: 'none' }).builtinImages, []);
    const proxies = '10.0.0.0/8, ::1,192.0.2.7';
    assert.deepEqual(loadConfig({ RELEAP_TRUSTED_PROXIES: proxies }).trustedProxies, [
      '10.0.0.0/8',
      '::1',
      '192.0.2.7',
    ]);
    assert.equal(problems({ RELEAP_TRUSTED_PROXIES: 'proxy.example' }).length, 1);
    assert.equal(problems({ RELEAP_TRUSTED_PROXIES: '10.0.0.0/33' }).length, 1);
  });

  test('lets pulls use registries of this machine while only its users can reach the API', () => {
    const allowed = (env: Record<string, string>): readonly string[] => loadConfig(env).images.privateHosts;
    assert.deepEqual(allowed({}), ['loopback']);
    const own = { RELEAP_PUBLIC_URL: 'http://127.0.0.1:7070', RELEAP_CONTROL_URL: 'unix:/run/control.sock' };
    assert.deepEqual(allowed(own), ['loopback']);
    assert.deepEqual(allowed({ RELEAP_HOST: '0.0.0.0' }), []);
    assert.deepEqual(allowed({ RELEAP_PUBLIC_URL: 'https://api.example.org' }), []);
    assert.deepEqual(allowed({ RELEAP_CONTROL_URL: 'https://127.0.0.1.example.org' }), []);
    const listed = { RELEAP_REGISTRY_PRIVATE_HOSTS: 'registry.lan:5000,10.2.0.0/16' };
    assert.deepEqual(allowed(listed), ['registry.lan:5000', '10.2.0.0/16']);
    assert.deepEqual(allowed({ RELEAP_REGISTRY_PRIVATE_HOSTS: 'none' }), []);
    assert.equal(problems({ RELEAP_REGISTRY_PRIVATE_HOSTS: 'https://registry.lan' }).length, 1);
  });

  test('leaves an issuer as it is written: a slash at its end belongs to its name', () => {
    for (const issuer of ['https://id.example.org/', 'https://id.example.org/realms/a']) {
      assert.equal(loadConfig({ RELEAP_OIDC_ISSUER: issuer }).oidc.issuer, issuer);
    }
  });

  test('takes the certificate of previews from files, a development CA or an authority', () => {
    const tls = (env: Record<string, string>) => loadConfig(env).previewTls;
    assert.equal(tls({}), undefined);
    const files = { RELEAP_PREVIEW_TLS_CERTIFICATE: '/c.pem', RELEAP_PREVIEW_TLS_KEY: '/k.pem' };
    const given = { source: 'files', certificate: '/c.pem', key: '/k.pem', port: 443 };
    assert.deepEqual(tls(files), given);
    assert.deepEqual(tls({ ...files, RELEAP_PREVIEW_TLS: 'files' }), given);
    assert.equal(tls({ ...files, RELEAP_PREVIEW_TLS: 'off' }), undefined);
    const dev = { RELEAP_PREVIEW_TLS: 'dev', RELEAP_PREVIEW_TLS_PORT: '8443' };
    assert.deepEqual(tls(dev), { source: 'dev', port: 8443 });
    assert.equal(previewUrlOf(loadConfig(dev), 7071), 'https://preview.localhost:8443');
    const acme = {
      RELEAP_PREVIEW_TLS: 'acme',
      RELEAP_PREVIEW_DOMAIN: 'preview.example.org',
      RELEAP_ACME_AGREE_TERMS: '1',
      RELEAP_ACME_DNS_SERVER: '[2001:db8::1]:5353',
      RELEAP_ACME_DNS_KEY_FILE: '/tsig.key',
      RELEAP_ACME_DNS_RESOLVERS: '192.0.2.1, [2001:db8::1]:53',
      RELEAP_ACME_EAB_KID: 'kid',
      RELEAP_ACME_EAB_HMAC_KEY_FILE: '/hmac',
    };
    assert.deepEqual(tls(acme), {
      source: 'acme',
      port: 443,
      acme: {
        directoryUrl: 'https://acme-v02.api.letsencrypt.org/directory',
        dns: { type: 'update', server: { host: '2001:db8::1', port: 5353 }, keyFile: '/tsig.key' },
        dnsServers: ['192.0.2.1', '[2001:db8::1]:53'],
        dnsWaitMs: 300_000,
        binding: { keyId: 'kid', hmacKeyFile: '/hmac' },
      },
    });
    assert.equal(previewUrlOf(loadConfig(acme), 7071), 'https://preview.example.org');
    const hook = { ...acme, RELEAP_ACME_DNS_SERVER: '', RELEAP_ACME_DNS_HOOK: '/hook' };
    const byHook = tls(hook);
    assert.deepEqual(byHook?.source === 'acme' && byHook.acme.dns, {
      type: 'hook',
      program: '/hook',
      deadlineMs: 120_000,
    });
    for (const [env, problem] of [
      [{ RELEAP_PREVIEW_TLS: 'files' }, /needs RELEAP_PREVIEW_TLS_CERTIFICATE/],
      [{ RELEAP_PREVIEW_TLS_KEY: '/k.pem' }, /must be set together/],
      [{ ...files, RELEAP_PREVIEW_TLS: 'dev' }, /RELEAP_PREVIEW_TLS=dev excludes/],
      [{ ...dev, RELEAP_PREVIEW_DOMAIN: 'localhost' }, /two labels.*for example preview\.localhost/],
      [{ RELEAP_PREVIEW_TLS: 'acme' }, /needs RELEAP_PREVIEW_DOMAIN/],
      [{ ...acme, RELEAP_ACME_AGREE_TERMS: '0' }, /terms of service/],
      [{ ...acme, RELEAP_ACME_DNS_HOOK: '/hook' }, /either RELEAP_ACME_DNS_HOOK or/],
      [{ ...acme, RELEAP_ACME_EAB_KID: '' }, /must be set together/],
      [{ ...acme, RELEAP_ACME_DNS_RESOLVERS: 'resolver' }, /addresses of DNS servers/],
      [{ RELEAP_PREVIEW_TLS: 'letsencrypt' }, /one of off, files, dev, acme/],
    ] as const)
      assert.match(problems(env).join('\n'), problem);
  });

  test('names all that is wrong at once, with the value and what is allowed', () => {
    const found = problems({
      RELEAP_PORT: '70700',
      RELEAP_HOME: 'relative/path',
      RELEAP_WARM_POOL: '1e3',
      RELEAP_BUILTIN_IMAGES: 'busybox,windows',
      RELEAP_REGION: 'Not A Slug',
      RELEAP_LOG_LEVEL: 'loud',
      RELEAP_CPU_OVERCOMMIT: '0.5',
      DATABASE_URL: 'mysql://root@localhost/x',
    });
    assert.equal(found.length, 8);
    assert.ok(found.includes('RELEAP_PORT=70700: must be a whole number from 0 to 65535'));
    assert.ok(found.includes('RELEAP_HOME=relative/path: must be an absolute path'));
    assert.ok(found.some((line) => line.startsWith('RELEAP_LOG_LEVEL=loud: must be one of trace, debug')));
    assert.ok(found.some((line) => line.includes('busybox,windows: must be a list of busybox, debian')));
  });

  test('never shows a password', () => {
    const [found] = problems({ DATABASE_URL: 'mysql://root:hunter2@localhost/x' });
    assert.equal(found, 'DATABASE_URL=mysql://root:***@localhost/x: must be a postgres:// URL');
  });

  test('either takes a text or says what is wrong with it, for any text', () => {
    const names = Object.keys(VARIABLES) as VariableName[];
    fc.assert(
      fc.property(fc.constantFrom(...names), fc.string({ unit: 'binary' }), (name, text) => {
        for (const problem of problems({ [name]: text })) assert.ok(problem.startsWith(`${name}=`));
      }),
    );
  });

  test('is documented as it is', async () => {
    const file = path.resolve(import.meta.dirname, '../../../docs/configuration.md');
    assert.equal(await readFile(file, 'utf8'), configurationDocument(), 'run npm run docs:configuration');
  });
});

test('preview URLs are of this machine, of a certificate, or of a proxy; without a domain there are none', () => {
  const urlOf = (env: Record<string, string>) => previewUrlOf(loadConfig(env), 7071);
  const tls = { RELEAP_PREVIEW_TLS_CERTIFICATE: '/c.pem', RELEAP_PREVIEW_TLS_KEY: '/k.pem' };
  const all = { RELEAP_HOST: '0.0.0.0' };
  const domain = { RELEAP_PREVIEW_DOMAIN: 'p.example.org' };
  assert.equal(urlOf({}), 'http://localhost:7071');
  assert.equal(urlOf(all), undefined);
  assert.equal(urlOf({ ...all, RELEAP_PREVIEW_DOMAIN: 'p.localhost' }), 'http://p.localhost:7071');
  assert.equal(urlOf({ ...all, ...domain }), 'https://p.example.org');
  assert.equal(urlOf({ ...all, ...domain, ...tls }), 'https://p.example.org');
  assert.equal(urlOf({ ...domain, ...tls, RELEAP_PREVIEW_TLS_PORT: '8443' }), 'https://p.example.org:8443');
  assert.equal(urlOf({ ...tls, ...domain, RELEAP_PREVIEW_URL: 'http://x.test' }), 'http://x.test');
  assert.throws(() => urlOf({ RELEAP_PREVIEW_TLS_KEY: '/k.pem' }), /must be set together/);
});

test('a server at a public address without TLS does not start, unless plain HTTP is allowed; in a private network it warns', () => {
  const gateway = { RELEAP_TOOLBOX_URL: 'https://gw.example' };
  const proxied = { RELEAP_PUBLIC_URL: 'https://api.example', ...gateway };
  const all = { RELEAP_HOST: '0.0.0.0' };
  const refused = (role: 'all' | 'control' | 'gateway', env: Record<string, string>): string => {
    try {
      assertEncrypted(loadConfig(env), role, ['127.0.0.1', '10.1.2.3', '2600::1', 'fe80::1']);
      return '';
    } catch (error) {
      assert.ok(error instanceof ConfigError);
      return (
        /API keys to (.*) over plain HTTP, at the public address (?:2600::1|8\.8\.8\.8)/.exec(
          error.problems[0] ?? '',
        )?.[1] ?? '?'
      );
    }
  };
  for (const [role, env, plain] of [
    ['all', {}, ''],
    ['all', { RELEAP_HOST: '::1', RELEAP_PUBLIC_URL: 'http://a.example' }, ''],
    ['all', all, 'the API and the gateway'],
    ['control', all, 'the API'],
    ['gateway', all, 'the gateway'],
    ['all', { RELEAP_HOST: '8.8.8.8', RELEAP_PUBLIC_URL: 'http://a.example', ...gateway }, 'the API'],
    ['all', { ...all, RELEAP_TRUSTED_PROXIES: '10.0.0.0/8' }, 'the API and the gateway'],
    ['all', { ...all, ...proxied }, ''],
    ['all', { ...all, ...proxied, RELEAP_PREVIEW_DOMAIN: 'p.example' }, ''],
    ['all', { ...all, ...proxied, RELEAP_PREVIEW_DOMAIN: 'p.localhost' }, ''],
    ['gateway', { ...all, ...proxied, RELEAP_PREVIEW_URL: 'http://p.example' }, 'previews'],
    ['control', { ...all, ...proxied, RELEAP_PREVIEW_URL: 'http://p.example' }, ''],
    ['all', { ...all, RELEAP_PLAIN_HTTP: '1' }, ''],
  ] as const)
    assert.equal(refused(role, env), plain, `${role} ${JSON.stringify(env)}`);
  const inside = loadConfig({ RELEAP_HOST: '10.0.0.1' });
  assertEncrypted(inside, 'all');
  assertEncrypted(loadConfig(all), 'all', ['127.0.0.1', '192.168.1.2', '::1']);
  assert.match(plainHttpWarning(inside, 'gateway') ?? '', /API keys to the gateway over plain HTTP/);
  assert.equal(plainHttpWarning(loadConfig({ ...all, ...proxied }), 'all'), undefined);
  assert.equal(plainHttpWarning(loadConfig({ ...all, RELEAP_PLAIN_HTTP: '1' }), 'all'), undefined);
});
