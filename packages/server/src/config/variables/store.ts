/** The store of a deployment. */
import { Type } from 'typebox';
import { AbsolutePath, HttpUrl, variable } from './variable.ts';

export const THE_STORE = {
  RELEAP_STORE: variable({
    schema: Type.String({
      pattern: '^(/[^\\0]*|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]*)?)$',
      expected: 'an absolute path, or s3://bucket/prefix',
    }),
    defaultText: '`$RELEAP_HOME/store`',
    description:
      'Where images, snapshots and build contexts are stored: a folder, or an S3 bucket. The same on all control servers: ' +
      'several machines need a bucket, or a folder that all of them mount.',
    group: 'The store',
  }),
  RELEAP_STORE_S3_ENDPOINT: variable({
    schema: HttpUrl,
    defaultText: 'that of AWS for the region',
    description: 'Base URL of an S3-compatible service. Buckets are addressed by path there.',
    group: 'The store',
  }),
  RELEAP_STORE_S3_REGION: variable({
    schema: Type.String({ pattern: '^[A-Za-z0-9-]{1,64}$', expected: 'the name of a region' }),
    default: 'us-east-1',
    description: 'Region of the bucket.',
    group: 'The store',
  }),
  RELEAP_STORE_S3_ACCESS_KEY_ID: variable({
    schema: Type.String({ pattern: '^\\S{1,256}$', expected: 'text without spaces' }),
    defaultText:
      'the credentials that the AWS SDK finds: `AWS_…` variables, profile files, the role of the machine',
    description: 'Access key of the bucket.',
    group: 'The store',
  }),
  RELEAP_STORE_S3_SECRET_ACCESS_KEY: variable({
    schema: Type.String({ pattern: '^\\S{1,1024}$', expected: 'text without spaces' }),
    secret: true,
    defaultText: 'see `RELEAP_STORE_S3_ACCESS_KEY_ID`',
    description: 'Secret of the access key.',
    group: 'The store',
  }),
  RELEAP_STORE_S3_CREDENTIALS_FILE: variable({
    schema: AbsolutePath,
    defaultText: 'see `RELEAP_STORE_S3_ACCESS_KEY_ID`',
    description:
      'JSON file with `access_key_id`, `secret_access_key` and, for temporary keys, `session_token`, instead of the two ' +
      'variables. It is read again within minutes after it was replaced.',
    group: 'The store',
  }),
} as const;
