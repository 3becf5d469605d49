import assert from 'node:assert/strict';
import { it } from 'node:test';
import { parseDatabaseUrl } from '../src/database-url.ts';

const hostsOf = (url: string): string[] =>
  parseDatabaseUrl(url).hosts.map(({ host, port }) => `${host} ${port}`);

it('hosts of a connection string are read as libpq reads them', () => {
  assert.deepEqual(hostsOf('postgres://u:p@h1:1,h2/db'), ['h1 1', 'h2 5432']);
  assert.deepEqual(hostsOf('postgresql://u@[::1]:5,[fe80::1]/db'), ['::1 5', 'fe80::1 5432']);
  assert.deepEqual(hostsOf('postgres:///db?host=/a,/b&port=1,2'), ['/a 1', '/b 2']);
  assert.deepEqual(hostsOf('postgres:///db?host=h1,::1&port=7'), ['h1 7', '::1 7']);
  assert.deepEqual(hostsOf('postgres://u@%2Frun%2Fpg:1,h2/db'), ['/run/pg 1', 'h2 5432']);
});

it('each host has a connection string of its own, with the credentials and the other parameters', () => {
  const { hosts } = parseDatabaseUrl(
    'postgres://u%40:p%2F@h1,h2:3/db?target_session_attrs=read-write&sslmode=verify-full',
  );
  assert.deepEqual(
    hosts.map(({ url }) => url),
    [
      'postgres://u%40:p%2F@/db?sslmode=verify-full&host=h1&port=5432',
      'postgres://u%40:p%2F@/db?sslmode=verify-full&host=h2&port=3',
    ],
  );
});

it('the credentials of a single host may be written as pg takes them', () => {
  for (const url of ['postgres://u:p@ss@h:1/db', 'postgres://u:50%@h:1/db'])
    assert.deepEqual(hostsOf(url), ['h 1'], url);
});

it('of several hosts, and of one with target_session_attrs, only one that accepts writes is used', () => {
  for (const [url, expected] of [
    ['postgres://h1/db', false],
    ['postgres://h1/db?target_session_attrs=any', false],
    ['postgres://h1/db?target_session_attrs=primary', true],
    ['postgres://h1,h2/db', true],
    ['postgres://h1,h2/db?target_session_attrs=any', true],
  ] as const)
    assert.equal(parseDatabaseUrl(url).mustAcceptWrites, expected, url);
});

it('a wrong connection string is refused with the part that is wrong, and without the password', () => {
  for (const [url, expected] of [
    ['mysql://u:secret@h/db', /must be postgres:\/\//],
    ['postgres://u:secret@h1,,h2/db', /empty host/],
    ['postgres://u:secret@h1,u:secret@h2/db', /written once, in front of the first host/],
    ['postgres://u:secret@x@h1,h2/db', /an @ in them as %40/],
    ['postgres://u:sec%ret@h1,h2/db', /%25/],
    ['postgres://h1:0,h2/db', /port 0: must be from 1 to 65535/],
    ['postgres://h1:x/db', /host "h1:x"/],
    ['postgres:///db?host=a,b&port=1,2,3', /2 hosts and 3 ports/],
    ['postgres://h1,h2/db?target_session_attrs=standby', /=standby: must be read-write, primary or any/],
    ['postgres://a,b,c,d,e,f,g,h,i/db', /9 hosts: at most 8/],
  ] as const)
    assert.throws(
      () => parseDatabaseUrl(url),
      (error: Error) => expected.test(error.message) && !error.message.includes('sec'),
      url,
    );
});
