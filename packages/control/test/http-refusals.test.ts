import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import {
  BOUNDS,
  ERROR_CODES,
  type ErrorCode,
  IDEMPOTENCY_HEADER,
  internalOperations,
  openApiDocument,
  operationErrors,
  operations,
  operatorOperations,
  type Operation,
} from '@releap/contract';
import { credentialOf, joinAs, METRICS_TOKEN } from '@releap/testing/credentials';
import { testKeys } from '@releap/testing/keys';
import { startSignedInWorld, type Person, type SignedInWorld } from '@releap/testing/issuer';
import { create, waitFor, type Answer } from '@releap/testing/world';

/** All that the control plane serves. */
const served: [string, Operation][] = Object.entries({
  ...operations,
  ...operatorOperations,
  ...internalOperations,
} as Record<string, Operation>).filter(([, operation]) => operation.server === undefined);

const UNKNOWN = '00000000-0000-4000-8000-000000000000';
const pathOf = (operation: Operation, id = UNKNOWN): string => operation.path.replaceAll(/:\w+/g, id);

describe('what an operation refuses before it is asked', () => {
  const keys = testKeys();
  let world: SignedInWorld;
  let person: Person;
  before(async () => {
    world = await startSignedInWorld({ keys });
    person = await world.as('ada');
  });
  after(() => world[Symbol.asyncDispose]());

  const send = (
    operation: Operation,
    path: string,
    init: { body?: string; headers?: Record<string, string>; credential?: string | undefined } = {},
  ): Promise<Answer> => {
    const calls = {
      workload: world.call,
      management: person,
      public: world.call,
      sandbox: world.call,
      operator: world.operator,
      // Without a runner's credential: it is refused before anything else.
      runner: world.gateway,
      gateway: world.gateway,
    };
    const { body, credential, headers } = init;
    return calls[operation.security](operation.method, path, body, {
      headers: { ...headers, ...(credential === undefined ? {} : { authorization: credential }) },
    });
  };

  const document = openApiDocument() as unknown as {
    paths: Record<string, Record<string, { responses: Record<string, unknown> }>>;
  };
  function documented(name: string, operation: Operation, answer: Answer): void {
    const { status } = answer;
    const where = `${name}: ${status} ${answer.text.slice(0, 200)}`;
    assert.ok(status >= 400 && status !== 500, where);
    assert.equal(typeof answer.body?.error, 'string', where);
    const known = operationErrors(operation).find(([one]) => one === status);
    assert.ok(known !== undefined, `not documented: ${where}`);
    assert.ok(known[2].includes(answer.body.code), `a code that is not documented: ${where}`);
    assert.equal(answer.body.retryable, ERROR_CODES[answer.body.code as ErrorCode].retryable);
    assert.equal(answer.body.request_id, answer.headers.get('x-request-id'), where);
    if (!(name in operations)) return;
    const path = operation.path.replaceAll(/:([a-z_]+)/g, '{$1}');
    const responses = document.paths[path]?.[operation.method.toLowerCase()]?.responses ?? {};
    assert.ok(String(status) in responses, `not in OpenAPI: ${where}`);
  }

  it('credentials that are missing, wrong, or of another plane', async () => {
    for (const [name, operation] of served) {
      // What a runner joins with is checked together with its body.
      if (operation.security === 'public' || name === 'joinRunner') continue;
      const planes = ['workload', 'management', 'operator', 'gateway'];
      const keys = [world.call.key, await world.issuer.token('ada'), world.operator.key, world.gateway.key];
      // The token of metrics opens that operation alone.
      if (name !== 'getMetrics') keys.push(METRICS_TOKEN);
      const others = keys.filter((_, index) => planes[index] !== operation.security);
      for (const credential of [
        '',
        'Basic abc',
        'Bearer nonsense',
        ...others.map((key) => `Bearer ${key}`),
      ]) {
        const answer = await send(operation, pathOf(operation), { credential });
        assert.equal(answer.status, 401, `${name} with ${credential.slice(0, 20)}: ${answer.text}`);
        documented(name, operation, answer);
      }
    }
  });

  it('a query parameter that is given twice', async () => {
    await joinAs(world.internalUrl, UNKNOWN);
    for (const [name, operation] of served) {
      if (operation.query === undefined) continue;
      const parameter =
        Object.keys((operation.query as unknown as { properties: object }).properties)[0] ?? '';
      const credential = operation.security === 'runner' ? `Bearer ${credentialOf(UNKNOWN)}` : undefined;
      const id = operation.path.endsWith('/:digest') ? `sha256:${'0'.repeat(64)}` : UNKNOWN;
      const path = `${pathOf(operation, id)}?${parameter}=1&${parameter}=1`;
      const answer = await send(operation, path, { credential });
      assert.equal(answer.status, 400, `${name}: ${answer.text}`);
      assert.match(answer.body.error, /was given 2 times/);
      documented(name, operation, answer);
    }
  });

  it('a body that is no JSON, no object, or too large', async () => {
    for (const [name, operation] of served) {
      if (operation.method === 'GET') continue;
      documented(name, operation, await send(operation, pathOf(operation), { body: '{"a":' }));
      if (operation.body !== undefined)
        documented(name, operation, await send(operation, pathOf(operation), { body: '[]' }));
    }
    // The client is still sending when it is refused, and sees the answer all the same.
    for (const name of ['createSandbox', 'createVolume', 'mapInvocations', 'createObjectStore'] as const) {
      const operation = operations[name];
      const body = 'x'.repeat(BOUNDS.requestBodyBytes + 1);
      const large = await send(operation, pathOf(operation), { body });
      assert.equal(large.status, 400);
      assert.match(large.body.error, /too large: at most 8388608 bytes/);
      documented(name, operation, large);
    }
  });

  it('a path parameter that nothing can have', async () => {
    for (const [name, operation] of served) {
      if (operation.params === undefined) continue;
      const body = operation.body === undefined ? {} : { body: '{}' };
      documented(name, operation, await send(operation, pathOf(operation, '%00'), body));
    }
  });

  it('an Idempotency-Key that is malformed, or was used for another request', async () => {
    await world.runner();
    const source = await create(world.call, world, { persistent: true });
    await waitFor(world.call, source.id, 'running');
    const { orgId, projectId } = await world.tenant(person);
    for (const answer of [
      await world.call('PUT', '/secrets/STORE', { value: 'key' }),
      await person('PUT', `/projects/${projectId}/secrets/STORE`, { value: 'key' }),
    ])
      assert.equal(answer.status, 204, answer.text);
    const store = { bucket: 'data', access_key_secret: 'STORE', secret_key_secret: 'STORE' };
    const bodies: Record<string, [id: string, body: object, other: object]> = {
      createSandbox: ['', { image: 'busybox', name: 'first' }, { image: 'busybox', name: 'second' }],
      createEndpoint: [source.id, { port: 80 }, { port: 81 }],
      forkSandbox: [source.id, { name: 'fork-a' }, { name: 'fork-b' }],
      createSnapshot: [source.id, { name: 'one', kind: 'full' }, { name: 'two', kind: 'full' }],
      createImage: [
        '',
        { name: 'one', source: { type: 'registry', ref: 'docker.io/library/busybox:1' } },
        { name: 'two', source: { type: 'registry', ref: 'docker.io/library/busybox:1' } },
      ],
      deployFunction: ['', { name: 'one', image: 'busybox' }, { name: 'two', image: 'busybox' }],
      setFunctionPublic: ['one', { enabled: true }, { enabled: false }],
      spawnInvocation: ['one', { n: 1 }, { n: 2 }],
      mapInvocations: ['one', { payloads: [1] }, { payloads: [2] }],
      createSchedule: ['one', { cron: '0 0 1 1 *' }, { cron: '0 0 2 1 *' }],
      createObjectStore: ['', { ...store, name: 'one' }, { ...store, name: 'two' }],
      createProjectObjectStore: [projectId, { ...store, name: 'one' }, { ...store, name: 'two' }],
      createVolume: ['', { name: 'one' }, { name: 'two' }],
      createProjectVolume: [projectId, { name: 'one' }, { name: 'two' }],
      createOrg: ['', { name: 'one' }, { name: 'two' }],
      createProject: [orgId, { name: 'one' }, { name: 'two' }],
      createApiKey: [projectId, { name: 'one' }, { name: 'two' }],
      grantCredits: [orgId, { amount: '1' }, { amount: '2' }],
    };
    for (const [name, operation] of served) {
      if (operation.idempotent !== true) continue;
      const found = bodies[name];
      assert.ok(found !== undefined, `this test has no bodies of ${name}`);
      const [id, body, other] = found;
      const with_ = (key: string, what: object): Promise<Answer> =>
        send(operation, pathOf(operation, id), {
          body: JSON.stringify(what),
          headers: { [IDEMPOTENCY_HEADER]: key },
        });
      const malformed = await with_('a key', body);
      assert.equal(malformed.status, 400, `${name}: ${malformed.text}`);
      documented(name, operation, malformed);
      const first = await with_(`key-of-${name}`, body);
      assert.equal(first.status, 200, `${name}: ${first.text}`);
      const reused = await with_(`key-of-${name}`, other);
      assert.equal(reused.status, 409, `${name}: ${reused.text}`);
      assert.match(reused.body.error, /was used for another request/);
      documented(name, operation, reused);
    }
  });

  describe('too many requests', () => {
    let limited: SignedInWorld;
    before(async () => {
      limited = await startSignedInWorld({ rateLimits: { perKey: 1, perOrg: 0, perAddress: 1 } });
    });
    after(() => limited[Symbol.asyncDispose]());
    it('is documented for every operation that is limited', async () => {
      const token = await limited.issuer.token('ada');
      for (const [name, operation] of served) {
        const credential = { workload: limited.call.key, management: token }[
          operation.security as 'workload'
        ];
        if (operation.rateLimited === false || (credential === undefined && operation.security !== 'public'))
          continue;
        const url = limited.url + pathOf(operation);
        const init = {
          method: operation.method,
          headers: credential === undefined ? {} : { authorization: `Bearer ${credential}` },
        };
        let response = await fetch(url, init);
        // The second one, or the third if the minute of the limit has ended between them.
        for (let more = 0; more < 2 && response.status !== 429; more += 1) response = await fetch(url, init);
        const body = (await response.json()) as { error: string };
        assert.equal(response.status, 429, name);
        documented(name, operation, {
          status: 429,
          headers: response.headers,
          text: JSON.stringify(body),
          body,
        });
      }
    });
  });

  it('a database that cannot be reached', () => {
    for (const [name, operation] of served)
      assert.ok(
        operationErrors(operation).some(([status]) => status === 503),
        name,
      );
  });
});
