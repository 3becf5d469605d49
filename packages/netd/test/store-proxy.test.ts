import assert from 'node:assert/strict';
import { randomBytes, randomInt } from 'node:crypto';
import type { lookup as dnsLookup } from 'node:dns';
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { after, before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { createServer as createTlsServer, type Server as TlsServer } from 'node:tls';
import {
  CompleteMultipartUploadCommand,
  CopyObjectCommand,
  CreateBucketCommand,
  CreateMultipartUploadCommand,
  DeleteObjectCommand,
  GetObjectAclCommand,
  GetObjectCommand,
  HeadObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
  UploadPartCommand,
  type S3ServiceException,
} from '@aws-sdk/client-s3';
import type { ProxiedStore } from '@releap/contract/netd';
import { testAuthority } from '@releap/testing/certificates';
import { S3_DOMAIN, startS3Server, type TestS3Server } from '@releap/testing/s3-server';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { StoreProxy } from '../src/stores/proxy.ts';
import { targetOf } from '../src/stores/upstream.ts';

const VM = 'sandbox';
const quiet = { error: () => undefined, warn: () => undefined, info: () => undefined };
const AWS_DOMAIN = 's3.us-east-1.amazonaws.com';
/** Not that of other tests, or of another run: its endpoint has the port of HTTPS, and this machine may be running servers there. */
const AWS_ADDRESS = `127.${[1, 2, 3].map(() => randomInt(1, 255)).join('.')}`;
/** Leads every name to this machine. */
const lookup = ((name: string, options: { all?: boolean }, done: (...found: unknown[]) => void) => {
  const address = name.endsWith(AWS_DOMAIN) ? AWS_ADDRESS : '127.0.0.1';
  return options.all === true ? done(null, [{ address, family: 4 }]) : done(null, address, 4);
}) as unknown as typeof dnsLookup;

let s3: TestS3Server;
let proxy: StoreProxy;
let guestEndpoint: string;
before(async () => {
  s3 = await startS3Server(await temporaryFolder('store-proxy-'));
  await s3.client.send(new CreateBucketCommand({ Bucket: 'data' }));
  await s3.client.send(new CreateBucketCommand({ Bucket: 'other' }));
  proxy = new StoreProxy(quiet, lookup);
  proxy.configure(['loopback', S3_DOMAIN]);
  proxy.keepOnly(new Set());
  guestEndpoint = `http://127.0.0.1:${await proxy.listen('127.0.0.1')}`;
});
after(async () => {
  await proxy.close();
  await s3[Symbol.asyncDispose]();
});

const real = () => ({
  access_key: s3.credentials.accessKeyId,
  secret_key: s3.credentials.secretAccessKey,
});
const store = (over: Partial<ProxiedStore> = {}): ProxiedStore => ({
  guest_access_key: 'GUEST1',
  guest_secret_key: 'guest-secret',
  endpoint: s3.endpoint,
  region: 'us-east-1',
  path_style: true,
  bucket: 'data',
  prefix: '',
  read_only: false,
  credentials: real(),
  ...over,
});
const serve = (...stores: ProxiedStore[]): void => proxy.put(VM, '127.0.0.1', stores);
const guest = (accessKeyId = 'GUEST1', secretAccessKey = 'guest-secret'): S3Client =>
  new S3Client({
    endpoint: guestEndpoint,
    region: 'us-east-1',
    forcePathStyle: true,
    credentials: { accessKeyId, secretAccessKey },
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    maxAttempts: 1,
  });
const refusal = async (work: Promise<unknown>): Promise<[number | undefined, string, string]> => {
  const error = (await work.then(
    () => assert.fail('it was not refused'),
    (caught: unknown) => caught,
  )) as S3ServiceException;
  return [error.$metadata?.httpStatusCode, error.name, error.message];
};
const object = (Key: string, Bucket = 'data') => ({ Bucket, Key });

describe('the store proxy, before a real S3 server', () => {
  for (const [style, where] of [
    ['path', () => ({ path_style: true })],
    ['host', () => ({ path_style: false, endpoint: `http://${S3_DOMAIN}:${new URL(s3.endpoint).port}` })],
  ] as const)
    it(`passes on reads, writes, lists, copies and uploads in parts (bucket in the ${style})`, async () => {
      serve(store({ ...where(), prefix: 'a/b c' }));
      const client = guest();
      const key = `a/b c/${style} & ü+%41 =.txt`;
      const small = randomBytes(1000);
      await client.send(new PutObjectCommand({ ...object(key), Body: small, Metadata: { mtime: '1.5' } }));
      const read = await client.send(new GetObjectCommand({ ...object(key), Range: 'bytes=10-19' }));
      assert.deepEqual(Buffer.from((await read.Body?.transformToByteArray()) ?? []), small.subarray(10, 20));
      assert.equal((await client.send(new HeadObjectCommand(object(key)))).Metadata?.['mtime'], '1.5');
      // As the server itself has it, under the name that the guest gave.
      assert.equal((await s3.client.send(new HeadObjectCommand(object(key)))).ContentLength, 1000);

      const copy = `a/b c/${style}-copy`;
      const CopySource = `data/${encodeURIComponent(key)}`;
      await client.send(new CopyObjectCommand({ ...object(copy), CopySource }));
      const parts = [randomBytes(5 * 1024 * 1024), randomBytes(17)];
      const large = object(`a/b c/${style}-large`);
      const { UploadId } = await client.send(new CreateMultipartUploadCommand(large));
      const sent = [];
      for (const [index, Body] of parts.entries()) {
        const part = { ...large, UploadId, PartNumber: index + 1 };
        sent.push({
          PartNumber: index + 1,
          ETag: (await client.send(new UploadPartCommand({ ...part, Body }))).ETag,
        });
      }
      await client.send(
        new CompleteMultipartUploadCommand({ ...large, UploadId, MultipartUpload: { Parts: sent } }),
      );
      const whole = await (await client.send(new GetObjectCommand(large))).Body?.transformToByteArray();
      assert.ok(Buffer.concat(parts).equals(Buffer.from(whole ?? [])));

      const list = await client.send(
        new ListObjectsV2Command({ Bucket: 'data', Prefix: 'a/b c/', Delimiter: '/' }),
      );
      const keys = list.Contents?.map(({ Key }) => Key) ?? [];
      for (const one of [key, copy, large.Key]) {
        assert.ok(keys.includes(one), one);
        await client.send(new DeleteObjectCommand(object(one)));
      }
      assert.equal((await refusal(client.send(new HeadObjectCommand(object(key)))))[0], 404);
    });

  it('holds the first requests until the runner has named their sandbox, or all that there are', async () => {
    const fresh = new StoreProxy(quiet, lookup);
    fresh.configure(['loopback', S3_DOMAIN]);
    const port = await fresh.listen('127.0.0.1');
    const get = () => fetch(`http://127.0.0.1:${port}/data/x`).then((answer) => answer.text());
    let answers = 0;
    const held = [get(), get()].map((answer) => answer.finally(() => (answers += 1)));
    // That another sandbox is named answers nothing.
    fresh.put('other', '127.0.0.2', [store()]);
    await sleep(100);
    assert.equal(answers, 0);
    fresh.put(VM, '127.0.0.1', [store()]);
    for (const text of await Promise.all(held)) assert.match(text, /not signed with the key of a mount/);
    fresh.remove(VM);
    const unnamed = get();
    fresh.keepOnly(new Set());
    assert.match(await unnamed, /the sandbox has no object store/);
    await fresh.close();
  });

  it('refuses what is not signed with the key of a mount of that sandbox', async () => {
    serve(store());
    const get = new GetObjectCommand(object('x'));
    assert.deepEqual((await refusal(guest('GUEST2').send(get))).slice(0, 2), [403, 'AccessDenied']);
    const wrong = guest('GUEST1', 'wrong').send(new GetObjectCommand(object('x')));
    assert.deepEqual((await refusal(wrong)).slice(0, 2), [403, 'SignatureDoesNotMatch']);
    const bare = await fetch(`${guestEndpoint}/data/x`);
    assert.equal(bare.status, 403);
    // The same keys from the address of another sandbox.
    proxy.put(VM, '127.0.0.2', [store()]);
    const other = await refusal(guest().send(new GetObjectCommand(object('x'))));
    assert.match(other[2], /the sandbox has no object store/);
    proxy.remove(VM);
  });

  it('refuses other buckets, keys outside the prefix, writes of a read-only mount, and other operations', async () => {
    serve(
      store({ prefix: 'own' }),
      store({ guest_access_key: 'READER', guest_secret_key: 'r', read_only: true }),
    );
    await s3.client.send(new PutObjectCommand({ ...object('secret'), Body: 'x' }));
    await s3.client.send(new PutObjectCommand({ ...object('x', 'other'), Body: 'x' }));
    const [client, reader] = [guest(), guest('READER', 'r')];
    const denied: (() => Promise<unknown>)[] = [
      () => client.send(new GetObjectCommand(object('x', 'other'))),
      () => client.send(new GetObjectCommand(object('secret'))),
      () => client.send(new GetObjectCommand(object('ownx'))),
      () => client.send(new GetObjectCommand(object('own/../secret'))),
      () => client.send(new PutObjectCommand({ ...object('secret'), Body: 'y' })),
      () => client.send(new DeleteObjectCommand(object('secret'))),
      () => client.send(new CopyObjectCommand({ ...object('own/copy'), CopySource: 'data/secret' })),
      () => client.send(new CopyObjectCommand({ ...object('own/copy'), CopySource: 'other/x' })),
      () => client.send(new ListObjectsV2Command({ Bucket: 'data' })),
      () => client.send(new ListObjectsV2Command({ Bucket: 'data', Prefix: 'ow' })),
      () => reader.send(new PutObjectCommand({ ...object('new'), Body: 'y' })),
      () => reader.send(new DeleteObjectCommand(object('secret'))),
      () => reader.send(new CreateMultipartUploadCommand(object('new'))),
    ];
    for (const [index, work] of denied.entries())
      assert.deepEqual((await refusal(work())).slice(0, 2), [403, 'AccessDenied'], `request ${index}`);
    const acl = await refusal(client.send(new GetObjectAclCommand(object('own/x'))));
    assert.deepEqual(acl.slice(0, 2), [501, 'NotImplemented']);
    const kept = await reader.send(new GetObjectCommand(object('secret')));
    assert.equal(await kept.Body?.transformToString(), 'x');
  });

  it('uses written credentials at once, and repeats none of them in errors', async () => {
    serve(store());
    const client = guest();
    await client.send(new PutObjectCommand({ ...object('rotated'), Body: 'x' }));
    serve(store({ credentials: { access_key: 'test:tester', secret_key: 'expired' } }));
    const [status, , message] = await refusal(client.send(new GetObjectCommand(object('rotated'))));
    assert.equal(status, 403);
    assert.doesNotMatch(message, /test:tester|expired/);
    const { credentials: _none, ...broken } = store();
    serve({ ...broken, unusable: 'the secret KEY was deleted' });
    assert.match(
      (await refusal(client.send(new GetObjectCommand(object('rotated')))))[2],
      /the secret KEY was deleted/,
    );
    serve(store());
    const read = await client.send(new GetObjectCommand(object('rotated')));
    assert.equal(await read.Body?.transformToString(), 'x');
  });
});

describe('the store proxy, before an S3 server with TLS whose authority is private', () => {
  const TRUSTED = ['loopback', S3_DOMAIN, AWS_DOMAIN];
  const servers: TlsServer[] = [];
  let authority: string;
  let port: number;
  before(async () => {
    const issuer = await testAuthority('private authority');
    authority = issuer.certificate;
    const names = [S3_DOMAIN, `*.${S3_DOMAIN}`, AWS_DOMAIN, `*.${AWS_DOMAIN}`];
    const { key, cert } = await issuer.issue(...names);
    const upstream = { host: '127.0.0.1', port: Number(new URL(s3.endpoint).port) };
    for (const [wanted, address] of [
      [443, AWS_ADDRESS],
      [0, '127.0.0.1'],
    ] as const) {
      const server = createTlsServer({ key, cert }, (socket) => {
        const onward = connect(upstream);
        for (const [from, to] of [
          [socket, onward],
          [onward, socket],
        ] as const)
          from.on('error', () => to.destroy()).pipe(to);
      });
      server.on('tlsClientError', () => undefined);
      server.listen(wanted, address);
      await once(server, 'listening');
      servers.push(server);
      ({ port } = server.address() as AddressInfo);
    }
  });
  after(() => {
    for (const server of servers) server.close();
    proxy.configure(['loopback', S3_DOMAIN]);
  });
  const own = (host = S3_DOMAIN) => `https://${host}:${port}`;
  const roundTrip = async (Key: string): Promise<void> => {
    const client = guest();
    await client.send(new PutObjectCommand({ ...object(Key), Body: Key }));
    const read = await client.send(new GetObjectCommand(object(Key)));
    assert.equal(await read.Body?.transformToString(), Key);
    const kept = await s3.client.send(new GetObjectCommand(object(Key)));
    assert.equal(await kept.Body?.transformToString(), Key);
  };

  it('verifies the certificate of the endpoint, with the authorities that the operator names', async () => {
    for (const path_style of [true, false]) {
      serve(store({ endpoint: own(), path_style }));
      proxy.configure(TRUSTED);
      const [status, , message] = await refusal(guest().send(new GetObjectCommand(object('x'))));
      assert.equal(status, 503);
      assert.match(message, /does not trust the authority of its certificate .*RELEAP_EGRESS_CA_FILE/);
      proxy.configure(TRUSTED, authority);
      await roundTrip(path_style ? 'tls in the path' : 'tls in the host');
    }
    // The right authority, and the name of another server.
    serve(store({ endpoint: own('other.test'), path_style: true }));
    proxy.configure([...TRUSTED, 'other.test'], authority);
    const wrong = await refusal(guest().send(new GetObjectCommand(object('x'))));
    assert.match(wrong[2], /does not match certificate's altnames/);
  });

  it('names the bucket in the host of AWS, in its region, when the store names no endpoint', async () => {
    proxy.configure(TRUSTED, authority);
    for (const region of ['us-east-1', '']) {
      serve(store({ endpoint: '', region, path_style: false, prefix: 'a' }));
      await roundTrip(`a/of AWS, in ${region || 'the default region'}`);
    }
    const urlOf = (over: Partial<ProxiedStore>): string => {
      const { url, path } = targetOf(store({ endpoint: '', path_style: false, ...over }));
      return `${url.origin}${path}`;
    };
    assert.equal(urlOf({ region: 'eu-central-1' }), 'https://data.s3.eu-central-1.amazonaws.com/');
    assert.equal(urlOf({ region: 'cn-north-1' }), 'https://data.s3.cn-north-1.amazonaws.com.cn/');
    // No certificate of a wildcard matches a name with dots.
    assert.equal(urlOf({ bucket: 'my.data' }), 'https://s3.us-east-1.amazonaws.com/my.data/');
  });
});

describe('the store proxy, before servers that fail', () => {
  let upstream: Server;
  let answer: { status: number; body: string; headers?: Record<string, string> };
  let got: IncomingHttpHeaders;
  let endpoint: string;
  before(async () => {
    upstream = createServer((request, response) => {
      got = request.headers;
      request.resume();
      response.writeHead(answer.status, answer.headers).end(answer.body);
    }).listen(0, '127.0.0.1');
    await once(upstream, 'listening');
    endpoint = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  });
  after(() => {
    upstream.closeAllConnections();
    upstream.close();
  });
  const get = () => guest().send(new GetObjectCommand(object('x')));

  it('sends the token of temporary credentials, and none of what the guest signed with', async () => {
    const credentials = { access_key: 'AKREAL', secret_key: 'sk', session_token: 'tok/en+' };
    serve(store({ endpoint, credentials }));
    answer = { status: 200, body: 'hi' };
    assert.equal(await (await get()).Body?.transformToString(), 'hi');
    assert.equal(got['x-amz-security-token'], 'tok/en+');
    assert.match(got.authorization ?? '', /Credential=AKREAL\/.*SignedHeaders=[^,]*x-amz-security-token/);
    assert.doesNotMatch(JSON.stringify(got), /GUEST1/);
    answer = {
      status: 400,
      body: '<Error><Code>ExpiredToken</Code><Message>m</Message><Token>tok/en+</Token><StringToSign>tok%2Fen</StringToSign><Key>AKREAL</Key></Error>',
    };
    const response = await refusal(get());
    assert.deepEqual(response.slice(0, 2), [400, 'ExpiredToken']);
  });

  it('passes errors on without credentials, redirects as errors, and recovers', async () => {
    const credentials = { access_key: 'AKREAL', secret_key: 'sk', session_token: 'tok/en+' };
    serve(store({ endpoint, credentials }));
    const raw = async (): Promise<string> => {
      const error = await get().then(
        () => assert.fail('it was not refused'),
        (caught: unknown) => caught,
      );
      return JSON.stringify(error, Object.getOwnPropertyNames(error));
    };
    answer = {
      status: 403,
      body: '<Error><Code>InvalidAccessKeyId</Code><Message>AKREAL tok/en+</Message></Error>',
    };
    const text = await raw();
    assert.match(text, /GUEST1/);
    assert.doesNotMatch(text, /AKREAL|tok\/en/);
    answer = {
      status: 301,
      body: '',
      headers: { location: 'http://169.254.169.254/', 'x-amz-bucket-region': 'eu-west-1' },
    };
    assert.match((await refusal(get()))[2], /the bucket is in eu-west-1/);
    answer = { status: 503, body: '<Error><Code>SlowDown</Code></Error>' };
    assert.equal((await refusal(get()))[0], 503);
    answer = { status: 200, body: 'again' };
    assert.equal(await (await get()).Body?.transformToString(), 'again');
  });

  it('answers 503 for an endpoint where nothing listens, and for private addresses', async () => {
    serve(store({ endpoint: 'http://127.0.0.1:1' }));
    assert.deepEqual((await refusal(get())).slice(0, 2), [503, 'ServiceUnavailable']);
    for (const private_ of ['http://10.0.0.1', 'http://rebinds.example', 'http://[::1]:9000']) {
      serve(store({ endpoint: private_ }));
      proxy.configure([]);
      const [status, , message] = await refusal(get());
      proxy.configure(['loopback', S3_DOMAIN]);
      assert.equal(status, 503);
      assert.match(message, /is in a private or reserved network.*RELEAP_STORE_PRIVATE_HOSTS/);
    }
  });
});
