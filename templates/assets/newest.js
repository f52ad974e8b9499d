// On a page that is out of date the link to the newest one leads to the section that its reader has come for.
"use strict";

{
  const link = one("a.newest");
  const follow = () => {
    link.hash = location.hash;
  };

  follow();
  addEventListener("hashchange", follow);
}
