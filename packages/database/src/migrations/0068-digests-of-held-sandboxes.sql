-- compatible-with: 41
-- transaction: none
-- Whether a sandbox still needs an image whose name is gone: without it, all sandboxes that ever were are read.
create index concurrently if not exists sandboxes_held_digest on sandboxes ((spec -> 'root' ->> 'digest'))
  where held and spec -> 'root' ->> 'digest' is not null;
