import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { createRoot, DAY_MS, generateKeys, issueIntermediate, issueLeaf, toPem } from '../src/x509.ts';

const openssl = promisify(execFile);

test('OpenSSL accepts names that a constrained intermediate may sign, and refuses all others', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'releap-constrained-'));
  t.after(() => rm(folder, { recursive: true }));
  const [rootKeys, keys, leafKeys] = await Promise.all([true, true, true].map(generateKeys));
  assert.ok(rootKeys && keys && leafKeys);
  const root = await createRoot({ commonName: 'root', keys: rootKeys, validMs: DAY_MS, pathLength: 1 });
  const at = (name: string): string => join(folder, name);
  await writeFile(at('root.pem'), toPem(root));
  const verify = async (domains: string[], host: string): Promise<string> => {
    const intermediate = await issueIntermediate(
      { certificate: root, key: rootKeys.privateKey },
      { commonName: 'intermediate', publicKey: keys.publicKey, validMs: DAY_MS, domains },
    );
    const leaf = await issueLeaf(
      { certificate: intermediate, key: keys.privateKey },
      { hosts: [host], publicKey: leafKeys.publicKey, validMs: DAY_MS },
    );
    await writeFile(at('intermediate.pem'), toPem(intermediate));
    await writeFile(at('leaf.pem'), toPem(leaf));
    const args = ['verify', '-CAfile', at('root.pem'), '-untrusted', at('intermediate.pem'), at('leaf.pem')];
    return await openssl('openssl', args).then(
      () => 'ok',
      (error: { stderr: string }) => error.stderr,
    );
  };
  const domains = ['api.example', 'wild.example'];
  for (const host of ['api.example', 'a.wild.example', '*.wild.example'])
    assert.equal(await verify(domains, host), 'ok', host);
  for (const host of ['bank.example', 'example', 'notapi.example', 'api.example.org'])
    assert.match(await verify(domains, host), /permitted subtree violation/, host);
  assert.match(await verify([], 'api.example'), /permitted subtree violation/);
});
