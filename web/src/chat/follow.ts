import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

const NEAR_PX = 60;

/** Keeps the end in sight while text comes in, until the reader scrolls away from it. */
export function useFollow(conversation: string): { scroller: RefObject<HTMLDivElement | null>; following: boolean; jump: () => void } {
  const scroller = useRef<HTMLDivElement>(null);
  const [following, setFollowing] = useState(true);
  const follow = useRef(true);

  useEffect(() => {
    const box = scroller.current;
    const thread = box?.firstElementChild;
    if (!box || !thread) return;
    const toEnd = () => (box.scrollTop = box.scrollHeight);
    const onScroll = () => {
      follow.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_PX;
      setFollowing(follow.current);
    };
    const observer = new ResizeObserver(() => follow.current && toEnd());
    observer.observe(thread);
    observer.observe(box);
    box.addEventListener("scroll", onScroll, { passive: true });
    follow.current = true;
    setFollowing(true);
    toEnd();
    return () => {
      observer.disconnect();
      box.removeEventListener("scroll", onScroll);
    };
  }, [conversation]);

  const jump = () => {
    follow.current = true;
    setFollowing(true);
    scroller.current?.scrollTo({ top: scroller.current.scrollHeight });
  };
  return { scroller, following, jump };
}
